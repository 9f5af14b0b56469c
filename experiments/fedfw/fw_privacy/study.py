"""Figure 1 of Dadras et al. 2024: what deep leakage finds again from gradients and from extreme points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.fedfw.fw_privacy.leakage import SIGNALS, SmoothNet, attack, gradient
from experiments.fedfw.fw_privacy.leakage_figures import GREY, Leak, curves, gallery
from fedsolve.studies.experiment import OURS, Claim, Context, Experiment, Outcome, Verdict
from fedsolve.studies.public import ResultTable
from fedsolve.studies.rules import Difference, decided, elsewhere, grade, interval

IMAGES, RESTARTS, LOOKS, EVERY = 5, 2, 16, 50
SEEN, NEAR_SEEN = 20.0, (15.0, 20.0, 30.0)
"""dB from which on a picture is recognised, ours, and its neighbours."""
SENT = {
    "gradient": "all numbers",
    "l2": "all numbers but their length",
    "l2 as gradient": "the same, attacked as if it were a gradient",
    "l1": "one place and one sign",
}
INTERVAL = "95 % interval over images, each with a network of its own"


def run(context: Context) -> Outcome:
    """Attack every picture through every signal, and compare."""
    images, restarts, looks, every = (2, 1, 2, 20) if context.quick else (IMAGES, RESTARTS, LOOKS, EVERY)
    plan = {"restarts": restarts, "looks": looks, "every": every}
    advance, leaks = context.progress("attacks"), []
    for i in range(images):
        part = context.part(f"image-{i}", plan, lambda i=i: _attacked(context, i, plan))
        leaks.append(Leak(part))
        advance(i + 1, images)
    final = {name: np.array([leak.psnr(name)[-1] for leak in leaks]) for name in (*SIGNALS, GREY)}
    height, width, channels = leaks[0].image("original").shape
    setting = (
        f"{images} images of {height} x {width} x {channels}, {looks * every:,} iterations, {restarts} starts"
    )
    return Outcome(
        claims(final, _labels_found(leaks, "l1")),
        {
            "pictures": lambda: (
                "What the attacker finds from each message.",
                gallery(leaks, tuple(SIGNALS), setting),
            ),
            "psnr": lambda: (
                "Quality of the found pictures as the attack goes on.",
                curves(leaks, tuple(SIGNALS), every, setting),
            ),
        },
        {"signals": _table(leaks, final)},
        DEVIATIONS,
        {**plan, "images": images},
    )


def _pictures(context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Test images of CIFAR-10 at half size, in [0, 1], and labels; 8 x 8 digits in a quick run."""
    if context.quick:
        from fedsolve.tasks import digits

        digit: Any = digits(num_clients=1).test
        return digit.x.reshape(-1, 8, 8, 1), digit.y
    from fedsolve.tasks import cifar10

    test: Any = cifar10(context.data_dir, num_clients=1).test
    return np.divide(test.x, 255, dtype=np.float32).reshape(-1, 16, 2, 16, 2, 3).mean((2, 4)), test.y


def _attacked(context: Context, i: int, plan: Mapping[str, int]) -> dict[str, np.ndarray]:
    """The first image of class i attacked through every signal: of the starts the one that explains it best."""
    images, labels = _pictures(context)
    image = jnp.asarray(images[int(np.flatnonzero(labels == i)[0])])
    model = SmoothNet(image.shape)  # type: ignore[arg-type]
    params, keys = model.init(jax.random.key(i)), jax.random.split(jax.random.key(1000 + i), plan["restarts"])
    true = gradient(model, params, image, jax.nn.one_hot(i, model.classes))
    kept = {"label": np.array(i), "original image": np.asarray(image)}
    for name, signal in SIGNALS.items():
        found = attack(
            model, params, signal.of(true), signal.direction, image, keys, looks=plan["looks"], every=plan["every"]
        )  # fmt: skip
        misfit = np.asarray(found.mismatch[:, -1])
        best = int(np.argmin(np.where(np.isfinite(misfit), misfit, np.inf)))
        kept |= {f"{name} {key}": np.asarray(value[best]) for key, value in found._asdict().items()}
    return kept


def claims(final: Mapping[str, np.ndarray], labels: float) -> list[Claim]:
    """Verdicts from the final PSNR (dB) of every image by message, and of a grey picture.

    Args:
        final: message -> (images,).
        labels: share of the images whose label the l1 vertex gave away, in %.
    """
    raw, l2, naive, l1, grey = (_spread(final[name]) for name in (*SIGNALS, GREY))

    def less(a: str, b: str) -> Difference:
        return Difference(a, b, *interval(final[b] - final[a], 2))

    of_l2, of_l1 = less("l2", "gradient"), less("l1", "l2")
    order, where = grade([of_l2, of_l1])
    figure = "Figure 1 and Section 3.2: "
    return [
        Claim("Deep leakage finds an image again from its gradient",
              f"{figure}data points can be recovered; the number is ours", raw, *_seen(final["gradient"])),
        Claim("A vertex of the l1 ball leaks less than the gradient", f"{figure}significantly less",
              f"{l1} against {raw}; less by {_words(final['gradient'] - final['l1'])}",
              _above(final["gradient"] - final["l1"]), INTERVAL),
        Claim("Leakage falls from gradient to l2 vertex to l1 vertex",
              f"{figure}harder from vertices, of the l1 ball in particular",
              f"{raw}; {l2}; {l1}; less by {_words(final['gradient'] - final['l2'], 2)} and "
              f"{_words(final['l2'] - final['l1'], 2)}", order, f"{INTERVAL}, both steps together{where}"),
        Claim("A vertex of the l2 ball, the gradient but for its length, shows the image to an attacker who knows what "
              "it is", OURS, l2, *_seen(final["l2"])),
        Claim("A vertex of the l2 ball leaks less than the gradient to the attack left unchanged, which takes it for "
              "a gradient", OURS, f"{naive} against {raw}; less by "
              f"{_words(final['gradient'] - final['l2 as gradient'])}",
              _above(final["gradient"] - final["l2 as gradient"]),
              f"{INTERVAL}; the paper does not say which attack its figure shows"),
        Claim("What is found from a vertex of the l1 ball is worse than a grey picture", OURS,
              f"{l1} against {grey}; less by {_words(final[GREY] - final['l1'])}", _above(final[GREY] - final["l1"]),
              f"{INTERVAL}; its label is no secret: one sign gave it for {labels:.0f} % of the images"),
    ]  # fmt: skip


def _seen(values: np.ndarray) -> tuple[Verdict, str]:
    """Whether pictures are recognised, and why."""
    given: dict[float, Verdict] = {bar: _above(values - bar) for bar in NEAR_SEEN}
    return given[SEEN], f"at least {SEEN:g} dB, by the {INTERVAL}; {elsewhere(given, SEEN)}"


def _above(values: np.ndarray) -> Verdict:
    """Whether the mean is above 0, by its interval."""
    return decided(interval(values), 0.0)


def _words(values: np.ndarray, comparisons: int = 1) -> str:
    return interval(values, comparisons).text(".1f", "dB")


def _spread(values: np.ndarray) -> str:
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f} dB"


def _labels_found(leaks: Sequence[Leak], name: str) -> float:
    """How many labels the attacker has right, in %."""
    return 100 * float(
        np.mean([np.argmax(leak.arrays[f"{name} label"]) == leak.arrays["label"] for leak in leaks])
    )


def _table(leaks: Sequence[Leak], final: Mapping[str, np.ndarray]) -> ResultTable:
    rows: list[list[Any]] = []
    for name, tells in SENT.items():
        misfit = float(np.median([leak.arrays[f"{name} mismatch"][-1] for leak in leaks]))
        values = (final[name].mean(), final[name].min(), final[name].max())
        numbers = [round(float(v), 1) for v in values]
        rows.append([name, tells, *numbers, f"{misfit:.2g}", round(_labels_found(leaks, name))])
    grey = final[GREY]
    ends = [round(float(v), 1) for v in (grey.mean(), grey.min(), grey.max())]
    rows.append(["nothing", "a grey picture is guessed", *ends, None, None])
    head = ["Message", "What it tells", "Mean PSNR (dB)", "Lowest (dB)", "Highest (dB)", "Median mismatch"]
    return ResultTable(
        f"What {len(leaks)} images leak through each message", [*head, "Labels found (%)"], rows
    )


DEVIATIONS = (
    f"Images: {IMAGES} test images of CIFAR-10, one a class, halved to 16 x 16 by means of 2 x 2, each with a random "
    "network of its own; the paper shows two of CIFAR-100.",
    f"{LOOKS * EVERY:,} iterations of L-BFGS from each of {RESTARTS} starts; the paper has 100,000 of a solver that it "
    "does not name. Of the starts the one that explains the message best counts, as an attacker would choose.",
    "Network: three 5x5 convolutions with sigmoids and a dense layer, after the public code of deep leakage; the paper "
    "does not name its network.",
    "What the attacker matches is our choice, as the paper does not say: the direction of the gradient for the l2 "
    "vertex, alignment with the one revealed coordinate for the l1 vertex. “l2 as gradient” is the attack left "
    "unchanged.",
    "The attacker knows the network and has no idea of what images look like: no prior, no bounds on pixels. With one "
    "the l1 vertex may tell more.",
    "The ball is around the whole gradient vector; its radius is public, so it is 1.",
)

STUDY = Experiment(
    title="What extreme points leak",
    citation="dadras2024fedfw",
    summary="Deep leakage from gradients against vertices of l2 and l1 balls (Figure 1).",
    run=run,
    minutes=0.6,
    needs_data=True,
)
