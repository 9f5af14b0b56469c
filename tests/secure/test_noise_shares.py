"""Shares of noise of a deployment: Skellam numbers with the right distribution, from AES in counter mode."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import replace
from fedsolve.deploy.client.secure_sums import with_share_of_noise
from fedsolve.deploy.secure.primitives import RandomBits, skellam_share

COUNT = 200_000


@pytest.mark.parametrize("variance", [0.3, 6.0, 19.9, 20.1, 60.0, 3e3, 5e6])
def test_the_distribution_is_skellam(variance):
    """Chi-square over cells of at least 50 expected numbers; the same key, so that it always passes or fails."""
    found = skellam_share(COUNT, variance, key=bytes(range(32)))
    law = stats.skellam(variance / 2, variance / 2) if variance < 1e5 else stats.norm(-0.5, variance**0.5)
    edges = np.unique(np.floor(np.linspace(-3.2, 3.2, 41) * variance**0.5))
    expected = COUNT * np.diff(law.cdf(np.concatenate([[-np.inf], edges, [np.inf]])))
    counted = np.bincount(np.searchsorted(edges, found), minlength=len(edges) + 1)
    assert expected[1:-1].min() > 50
    assert stats.chisquare(counted, expected).pvalue > 1e-3


@pytest.mark.parametrize("variance", [0.5, 100.0, 1e8, 1e13, 2.0**50])
def test_mean_and_variance(variance):
    """Five standard errors; the fourth moment of a Skellam number is v + 3 v^2."""
    found = skellam_share(COUNT, variance, key=bytes(32)).astype(float)
    assert abs(found.mean()) < 5 * (variance / COUNT) ** 0.5
    assert abs(found.var() - variance) < 5 * ((variance + 2 * variance**2) / COUNT) ** 0.5


def test_shares_add_up_to_the_noise_of_the_whole():
    """Ten shares of variance v/10 are noise of variance v, uncorrelated between clients."""
    shares = np.array([skellam_share(20_000, 10.0, key=bytes([i] * 32)) for i in range(10)])
    assert shares.sum(axis=0).var() == pytest.approx(100.0, rel=0.06)
    assert np.abs(np.corrcoef(shares) - np.eye(10)).max() < 0.04


def test_the_system_s_generator_decides():
    assert not np.array_equal(skellam_share(100, 9.0), skellam_share(100, 9.0))
    numbers = RandomBits(bytes(32)).uniform(COUNT)
    assert 0 < numbers.min() < 1e-4
    assert 1 - 1e-4 < numbers.max() < 1
    assert len(np.unique(numbers)) == COUNT


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan"), 2.0**51])
def test_variances_out_of_range(variance):
    with pytest.raises(InvalidInput, match="variance"):
        skellam_share(1, variance)


@pytest.mark.full
def test_messages_of_a_deployment_have_the_noise_of_the_accounted_sum():
    """20 clients that send 0, sums of at least 16: standard deviation z C sqrt(20/16) of the decoded sum."""
    inner = fs.privacy.DifferentialPrivacy(
        fs.FedAvg(weighting="uniform"), 2.0, 0.5, cohort=20, population=20, delta=1e-2, sampling="none",
        at="distributed", min_sum=16,
    )  # fmt: skip
    method = fs.Secure(inner, bound=1.0, max_clients=20)
    server = method.init({"w": jnp.zeros(20_000)})
    broadcast = method.broadcast(server, fs.Cohort(0, 20, 20))
    sent = [with_share_of_noise(method, method.train(broadcast, (), Still())[0]) for _ in range(20)]
    total = replace(sent[0], sums=_added([message.sums for message in sent]))
    after = method.update(server, total, fs.Cohort(0, 20, 20))
    found = 20 * np.asarray(method.export(after)["w"])
    assert found.std() == pytest.approx(2.0 * 0.5 * (20 / 16) ** 0.5, rel=0.03)
    assert abs(found.mean()) < 5 * found.std() / 20_000**0.5


def _added(sums):
    return tuple(
        replace(rings[0], value=sum(ring.value for ring in rings)) for rings in zip(*sums, strict=True)
    )


class Still(fs.Oracle):
    """A client at rest."""

    steps = bound = num_examples = batch_size = 1
    client, key = 0, None

    def __call__(self, params, step):
        return jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)

    loss = full = __call__  # pyright: ignore[reportAssignmentType]
