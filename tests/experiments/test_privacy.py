"""Leakage from gradients and from extreme points: the attack, its objective, and the verdicts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.experiments.catalogue import reproduce
from fedsolve.experiments.leakage import SIGNALS, Guess, SmoothNet, attack, gradient, mismatch, psnr
from fedsolve.experiments.privacy import leaks_less, verdicts

NET = SmoothNet((8, 8, 1), classes=3, channels=4)
PARAMS = NET.init(jax.random.key(0))
IMAGE = jnp.asarray(np.random.default_rng(0).uniform(size=(8, 8, 1)), jnp.float32)
TRUE = gradient(NET, PARAMS, IMAGE, jax.nn.one_hot(1, 3))


def guess(seed):
    a, b = jax.random.split(jax.random.key(seed))
    return Guess(jax.random.normal(a, IMAGE.shape), jax.random.normal(b, (3,)))


def test_gradient_of_the_dense_bias_is_softmax_minus_target():
    bias = gradient(NET, PARAMS, IMAGE, jnp.array([0.2, 0.3, 0.5]))[
        -3:
    ]  # the last leaf is the dense bias or kernel
    found = jax.grad(lambda p: -jnp.sum(jnp.array([0.2, 0.3, 0.5]) * jax.nn.log_softmax(NET(p, IMAGE))))(
        PARAMS
    )[-1][1]
    np.testing.assert_allclose(
        found, jax.nn.softmax(NET(PARAMS, IMAGE)) - jnp.array([0.2, 0.3, 0.5]), atol=1e-6
    )
    np.testing.assert_allclose(bias, found, atol=1e-7)


def test_messages_are_what_frank_wolfe_clients_send():
    np.testing.assert_array_equal(SIGNALS["gradient"].of(TRUE), TRUE)
    np.testing.assert_allclose(SIGNALS["l2"].of(TRUE), TRUE / np.linalg.norm(TRUE), rtol=1e-5)
    sent = np.asarray(SIGNALS["l1"].of(TRUE))
    place = int(np.argmax(np.abs(TRUE)))
    assert np.flatnonzero(sent).tolist() == [place]
    assert sent[place] == np.sign(TRUE[place])


@pytest.mark.parametrize("name", SIGNALS)
def test_mismatch_is_the_formula_of_the_module(name):
    g = np.asarray(gradient(NET, PARAMS, guess(1).image, jax.nn.softmax(guess(1).label)), np.float64)
    true, unit = np.asarray(TRUE, np.float64), g / np.linalg.norm(g)
    place = np.argmax(np.abs(true))
    expected = {
        "gradient": np.sum((g - true) ** 2) / np.sum(true**2),
        "l2": 2 * (1 - unit @ true / np.linalg.norm(true)),
        "l2 as gradient": np.sum((g - true / np.linalg.norm(true)) ** 2),
        "l1": 2 * (1 - np.sign(true[place]) * unit[place]),
    }[name]
    signal = SIGNALS[name]
    found = mismatch(NET, PARAMS, signal.of(TRUE), signal.direction, guess(1))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("name", ["gradient", "l2"])
def test_the_truth_has_no_mismatch(name):
    signal = SIGNALS[name]
    truth = Guess(IMAGE, jnp.array([0.0, 50.0, 0.0]))
    assert float(mismatch(NET, PARAMS, signal.of(TRUE), signal.direction, truth)) < 1e-9


@pytest.mark.full
def test_gradient_of_the_mismatch_is_its_slope():
    with jax.enable_x64(True):
        params, start, way, image = jax.tree.map(
            lambda a: jnp.asarray(a, jnp.float64), (PARAMS, guess(2), guess(3), IMAGE)
        )

        @jax.jit
        @jax.value_and_grad
        def along(t, sent, direction):
            moved = jax.tree.map(lambda a, b: a + t * b, start, way)
            return mismatch(NET, params, sent, direction, moved)

        true = gradient(NET, params, image, jax.nn.one_hot(1, 3))
        for name, signal in SIGNALS.items():
            ends = [along(t, signal.of(true), signal.direction)[0] for t in (-1e-4, 1e-4)]
            found = along(0.0, signal.of(true), signal.direction)[1]
            np.testing.assert_allclose(found, (ends[1] - ends[0]) / 2e-4, rtol=1e-5, err_msg=name)


@pytest.mark.full
def test_an_image_is_found_again_from_its_gradient_and_not_from_one_coordinate():
    keys, final = jax.random.split(jax.random.key(5), 2), {}
    for name in ("gradient", "l1"):
        signal = SIGNALS[name]
        found = attack(NET, PARAMS, signal.of(TRUE), signal.direction, IMAGE, keys, looks=2, every=60)
        assert found.psnr.shape == found.mismatch.shape == (2, 3)
        best = int(jnp.argmin(found.mismatch[:, -1]))
        final[name] = float(found.psnr[best, -1])
        np.testing.assert_allclose(final[name], psnr(found.image[best], IMAGE), rtol=1e-6)
    assert final["gradient"] > 25
    assert final["l1"] < 15


def test_psnr_is_that_of_the_clipped_image():
    np.testing.assert_allclose(psnr(jnp.full(4, 2.0), jnp.full(4, 0.9)), 20.0, rtol=1e-5)


@pytest.mark.parametrize(
    ("l2", "naive", "l1", "expected"),
    [
        ([30, 31], [20, 21], [10, 11], ("reproduced", "reproduced", "reproduced", "reproduced")),
        ([39.5, 41.2], [20, 21], [10, 11], ("reproduced", "not reproduced", "reproduced", "partly")),
        ([30, 31], [29, 31], [29.5, 30.5], ("reproduced", "reproduced", "reproduced", "not reproduced")),
        (
            [42, 43],
            [40, 41],
            [40, 41],
            ("not reproduced", "not reproduced", "not reproduced", "not reproduced"),
        ),
    ],
)
def test_verdicts(l2, naive, l1, expected):
    values = [[40.0, 41.0], l2, naive, l1]
    found = verdicts({name: np.array(v) for name, v in zip(SIGNALS, values, strict=True)})
    assert tuple(found[k] for k in ("l1", "l2", "l2 as gradient", "order")) == expected


@pytest.mark.parametrize(("raw", "expected"), [(20, "reproduced"), (15, "partly"), (14, "not reproduced")])
def test_verdict_on_the_gradient(raw, expected):
    assert verdicts(dict.fromkeys(SIGNALS, np.array([raw])))["gradient"] == expected


def test_two_exact_images_leak_alike():
    assert not leaks_less(np.array([62.0]), np.array([80.0]))
    assert leaks_less(np.array([57.0]), np.array([80.0]))


@pytest.mark.full
def test_quick_run_on_shipped_digits(tmp_path):
    found = reproduce("fw-privacy", tmp_path, quick=True)
    assert len(found.outcome.claims) == 5
    assert {f.name for f in tmp_path.iterdir()} >= {"page.html", "pictures.png", "psnr.png", "signals.csv"}
    assert len(list((tmp_path / "parts").iterdir())) == 8  # two images, four messages
