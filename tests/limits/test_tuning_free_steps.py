"""Identities of the tuning-free server steps and of wrapped losses; and bad input, refused in one line."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

import fedsolve as fs
from fedsolve.core.algorithm import Cohort
from fedsolve.core.oracle import CorrectedOracle, Oracle, ProximalOracle
from fedsolve.geometry import L1, DiagonalQuadratic, Entropy, PNorm, as_blocks
from fedsolve.geometry.numerics import FOUND, UNBOUNDED, UNRESOLVED, solve_increasing
from fedsolve.methods.client import SGD, Armijo, ConjugateGradient
from fedsolve.methods.server import (
    Adaptive,
    DeepFrankWolfe,
    DoublyAdaptive,
    EnvelopePolyak,
    GradientDiversity,
    LargestStep,
    MirrorDescent,
    Polyak,
)
from fedsolve.methods.server.dfw import Objective
from fedsolve.methods.server.dua import Spread
from fedsolve.methods.server.polyak import Excess
from fedsolve.methods.wrappers.proximal import SubgradientOracle

COHORT = Cohort(0, 3, 5)
RNG = np.random.default_rng(6)


pytestmark = pytest.mark.usefixtures("x64")


def step(rule, w, delta, measured):
    w = jnp.asarray(w)
    new, state = rule.step(w, rule.init(w), jnp.asarray(delta), measured, COHORT)
    return np.asarray(new), state


@pytest.mark.parametrize(
    ("f", "inside"), [(-9.0, False), (0.5, True), (2.0, True), (4.0, True), (200.0, False)]
)
def test_gamma_solves_its_problem(f, inside):
    """argmax over [0, 1] of  gamma f - (eta/2) |r + gamma Delta|^2 - (eps/2) gamma^2, found by bisection."""
    rng = np.random.default_rng(7)
    w, D, eta, lam, eps = rng.standard_normal(5), rng.standard_normal(5), 3.0, 0.05, 0.01
    new, state = step(DeepFrankWolfe(eta, lam=lam, eps=eps), w, D, Objective(jnp.asarray(f)))

    def dual(g):
        return -(g * f - eta / 2 * np.sum((lam * w - g * D) ** 2) - eps / 2 * g**2)

    best = minimize_scalar(dual, bounds=(0, 1), method="bounded", options={"xatol": 1e-12}).x
    assert float(state.gamma) == pytest.approx(best, abs=1e-6)
    assert (0 < float(state.gamma) < 1) is inside
    np.testing.assert_allclose(new, w - eta * (lam * w - float(state.gamma) * D), rtol=1e-13)


def test_gamma_is_a_polyak_step():
    """lam = eps = 0 and gamma < 1: eta gamma |Delta|^2 = f."""
    w, D = RNG.standard_normal(5), RNG.standard_normal(5)
    _, state = step(DeepFrankWolfe(5.0, lam=0.0, eps=0.0), w, D, Objective(jnp.asarray(0.7)))
    assert 5.0 * float(state.gamma) * (D @ D) == pytest.approx(0.7, rel=1e-13)


@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_nothing_moved(eps):
    """D = 0: gamma is 1 and only decay acts; Polyak, GraDS and StoPS stay where they are."""
    w, zero = RNG.standard_normal(4), np.zeros(4)
    new, state = step(DeepFrankWolfe(0.5, lam=0.1, eps=eps), w, zero, Objective(jnp.asarray(0.0)))
    assert float(state.gamma) == 1
    np.testing.assert_allclose(new, 0.95 * w, rtol=1e-14)
    some = Excess(jnp.asarray(1.0), jnp.asarray(1.0))
    for rule, said in (
        (Polyak(), some),
        (EnvelopePolyak(), some),
        (GradientDiversity(), Spread(jnp.asarray(2.0))),
    ):
        new, state = step(rule, w, zero, said)
        assert (new == w).all()
        assert float(state.server_lr) == 0


def test_polyak_below_the_bound():
    """Losses below f_star: no step backwards."""
    new, _ = step(Polyak(2.0), np.ones(3), np.ones(3), Excess(jnp.asarray(1.0), jnp.asarray(-0.1)))
    assert (new == 1).all()


class Quadratic(Oracle):
    """(1/2) (w - m)'A(w - m) in three dimensions."""

    steps = bound = 1
    num_examples = batch_size = 1
    client = 0
    A = jnp.asarray([[3.0, 1.0, 0.0], [1.0, 2.0, 0.5], [0.0, 0.5, 1.0]])
    m = jnp.asarray([1.0, -1.0, 2.0])

    def loss(self, params, step):
        return (params - self.m) @ self.A @ (params - self.m) / 2

    def __call__(self, params, step):
        return jax.value_and_grad(self.loss)(params, 0)

    def full(self, params):
        return self(params, 0)


def test_polyak_on_one_gradient_step():
    """One local step from w is -eta_l grad F: whatever eta_l, the server moves by (F - F*) / |grad F|^2 grad F."""
    w, oracle = jnp.asarray([0.3, 0.2, -0.4]), Quadratic()
    f, g = oracle(w, 0)
    for lr in (1e-3, 0.5):
        algorithm = fs.FedOpt(SGD(lr), Polyak(0.05))
        server = algorithm.init(w)
        message, _ = algorithm.train(algorithm.broadcast(server, COHORT), (), oracle)
        new = algorithm.export(algorithm.update(server, message, COHORT))
        np.testing.assert_allclose(new, w - (f - 0.05) / (g @ g) * g, rtol=1e-12)


WRAPPED = {
    "Proximal": lambda: ProximalOracle(Quadratic(), jnp.ones(3), 0.7),
    "SCAFFOLD": lambda: CorrectedOracle(Quadratic(), jnp.asarray([0.5, -1.0, 2.0]), jnp.ones(3)),
    "Subgradient": lambda: SubgradientOracle(Quadratic(), as_blocks(L1(0.3))),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_wrapped_losses_have_the_wrapped_gradients(name):
    """Differences of `loss` are the gradients that the oracle hands out; all three ways to ask agree."""
    oracle, w = WRAPPED[name](), jnp.asarray([0.3, 0.2, -0.4])
    loss, gradient = oracle(w, 0)
    for j in range(3):
        e = 1e-6 * jnp.eye(3)[j]
        slope = (oracle.loss(w + e, 0) - oracle.loss(w - e, 0)) / 2e-6
        assert float(slope) == pytest.approx(float(gradient[j]), abs=1e-8)
    assert float(loss) == float(oracle.loss(w, 0))
    assert float(oracle.full(w)[0]) == float(loss)
    np.testing.assert_array_equal(oracle.full(w)[1], gradient)
    assert float(loss) != float(Quadratic().loss(w, 0))


BAD = {
    "c = 0": (lambda: Armijo(c=0.0), ["c = 0.0", "> 0"]),
    "c = 1": (lambda: fs.FedLiLS(c=1.0), ["c = 1.0", "< 1"]),
    "beta = 0": (lambda: fs.FedLiLS(beta=0.0), ["beta = 0.0", "> 0"]),
    "beta = 1": (lambda: Armijo(beta=1.0), ["beta = 1.0", "< 1"]),
    "eta_max": (lambda: fs.FedLiLS(eta_max=0.0), ["eta_max = 0.0", "> 0"]),
    "eta_max infinite": (lambda: fs.FedLiLS(eta_max=float("inf")), ["eta_max = inf", "finite"]),
    "delta": (lambda: fs.FedLiLS(delta=0.9), ["delta = 0.9", ">= 1"]),
    "reset": (lambda: fs.FedLiLS(reset=3), ["reset = 3", "0 (keep)", "2 (grow)"]),  # type: ignore[arg-type]
    "reset flag": (lambda: fs.FedLiLS(reset=True), ["reset = True", "1 (back to eta_max)"]),
    "server": (lambda: fs.FedLiLS(server="maxx"), ["server 'maxx'", "did you mean 'max'"]),
    "weighting": (lambda: fs.FedLiLS(weighting="samples"), ["weighting", "'examples'"]),
    "f": (lambda: fs.FedLiLU(f="ends"), ["unknown f 'ends'", "did you mean 'end'"]),
    "loss_weights": (lambda: fs.FedLiLU(loss_weights="plane"), ["did you mean 'plain'"]),
    "preset": (lambda: fs.FedLiLU(preset="papers"), ["preset 'papers'", "did you mean 'paper'"]),
    "lam": (lambda: fs.FedLiLU(lam=-1e-3), ["lam = -0.001", ">= 0"]),
    "server_lr": (lambda: fs.FedLiLU(0.1, server_lr=0.0), ["server_lr = 0.0", "> 0"]),
    "momentum": (lambda: fs.FedLiLU(momentum=1.0), ["momentum = 1.0", "< 1"]),
    "eps": (lambda: fs.FedLiLU(eps=-1.0), ["eps = -1.0", ">= 0"]),
    "client option": (lambda: fs.FedLiLU(clip_nrm=1.0), ["did you mean 'clip_norm'"]),
    "gamma": (lambda: fs.FedExProx(gamma=0.0), ["gamma = 0.0", "> 0"]),
    "alpha": (lambda: fs.FedExProx(alpha=-1.0), ["alpha = -1.0", "> 0"]),
    "extrapolation": (lambda: fs.FedExProx(extrapolation="grads"), ["did you mean 'GraDS'"]),
    "no alpha": (lambda: fs.FedExProx(extrapolation="constant"), ["constant", "alpha such as 1.5"]),
    "alpha unused": (lambda: fs.FedExProx(alpha=2.0, extrapolation="StoPS"), ["leave out alpha = 2.0"]),
    "solver": (lambda: fs.FedExProx(solver="exakt"), ["did you mean 'exact'"]),
    "f_star": (lambda: Polyak(float("nan")), ["f_star = nan", "finite"]),
    "Polyak on Adam": (
        lambda: fs.FedOpt(fs.client.Optax(optax.adam, learning_rate=0.1), Polyak()),
        ["Polyak", "client.SGD(0.1)", "OptaxSolver"],
    ),
    "Polyak on exact solutions": (lambda: fs.FedOpt(ConjugateGradient(), Polyak()), ["ConjugateGradient"]),
    "largest step of SGD": (
        lambda: fs.FedOpt(SGD(0.1), LargestStep()),
        ["LargestStep", "client.Armijo()", "SGD"],
    ),
    "SCAFFOLD II": (lambda: fs.ControlVariates(fs.FedAda2()), ["AdaptiveSGD", "option='I'"]),
    "SCAFFOLD II by name": (lambda: fs.build("SCAFFOLD+FedAda2"), ["AdaptiveSGD", "option='I'"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(name):
    """InvalidInput in one line, with what would work."""
    make, words = BAD[name]
    with pytest.raises(fs.InvalidInput) as caught:
        make()
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"


# Identities of the doubly adaptive step, on the rule alone: its length, invariances, and 0/0.

DOUBLY_RNG = np.random.default_rng(2)
W = DOUBLY_RNG.standard_normal(6)
DELTAS = [DOUBLY_RNG.standard_normal((3, 6)) for _ in range(8)]


@jax.jit
def one_step(rule, w, state, delta, spread):
    return rule.step(w, state, delta, Spread(spread), COHORT)


def steps(rule, w=W, deltas=DELTAS):
    """(w before, w after, D, mean |D_i|^2, state) of every step along the mean of three displacements."""
    w, state, found = jnp.asarray(w), rule.init(jnp.asarray(w)), []
    for each in deltas:
        D, spread = jnp.asarray(each.mean(axis=0)), (each**2).sum(axis=1).mean()
        new, state = one_step(rule, w, state, D, jnp.asarray(spread))
        found.append((np.asarray(w), np.asarray(new), np.asarray(D), spread, state))
        w = new
    return found


RULES = {
    "FedExP": DoublyAdaptive(),
    "FedExPM": DoublyAdaptive(beta1=0.9),
    "FedDuAdagrad": DoublyAdaptive(preconditioner="adagrad"),
    "FedDuAdam": DoublyAdaptive(beta1=0.9, preconditioner="adam"),
    "FedDuAdam eps=0": DoublyAdaptive(beta1=0.9, eps=0.0, preconditioner="adam"),
    "p-norm": MirrorDescent(PNorm(1.3), beta1=0.9),
    "diagonal": MirrorDescent(DiagonalQuadratic(3.0)),
}


@pytest.mark.parametrize("name", RULES)
def test_length_along_the_momentum(name):
    """<w_{t+1} - w_t, v> = eta v'G^-1 v = m if eps_g = 0; in any geometry it is h(eta) = m itself.

    m_0 = 0, m = (b1/2) m + ((1 - b1)/2) mean |D_i|^2 (b1 = 0: half the mean), v likewise.
    """
    rule = RULES[name]
    b1 = 0.0 if rule.beta1 is None else 0.9
    v, m = np.zeros(6), 0.0
    for before, after, D, spread, _ in steps(rule):
        v, m = b1 * v + (1 - b1) * D, b1 / 2 * m + (1 - b1) / 2 * spread
        assert (after - before) @ v == pytest.approx(m, rel=1e-10)


def test_entropy_has_it_too():
    """On the positive orthant: w exp(eta v) - w along v has length m as well."""
    for before, after, D, spread, state in steps(MirrorDescent(Entropy()), np.abs(W) + 0.2):
        assert (after - before) @ D == pytest.approx(spread / 2, rel=1e-10)
        np.testing.assert_allclose(after, before * np.exp(float(state.server_lr) * D), rtol=1e-12)


def test_eps_g_shortens_the_step():
    """eta = m / (v'G^-1 v + eps_g): with eps_g = v'G^-1 v the step is half as long."""
    _, full, D, *_ = steps(DoublyAdaptive(), deltas=DELTAS[:1])[0]
    _, half, *_ = steps(DoublyAdaptive(eps_g=float(D @ D)), deltas=DELTAS[:1])[0]
    np.testing.assert_allclose(half - W, (full - W) / 2, rtol=1e-12)


def test_bias_correction_would_change_nothing():
    """eps = eps_g = 0: s / (1 - b2^t) scales G by a constant, which eta undoes; v and m share 1 / (1 - b1^t).

    With s' = s/a, v' = v/b, m' = m/b: eta' G'^-1 v' = (m/b) (sqrt(a) G^-1 v/b) / (sqrt(a) v'G^-1 v / b^2).
    """
    rule = DoublyAdaptive(beta1=0.9, beta2=0.99, eps=0.0, preconditioner="adam")
    s, v, m = np.zeros(6), np.zeros(6), 0.0
    for t, (before, after, D, spread, _) in enumerate(steps(rule), start=1):
        s, v = 0.99 * s + 0.01 * D**2, 0.9 * v + 0.1 * D
        m = 0.45 * m + 0.05 * spread
        corrected_s, corrected_v, corrected_m = s / (1 - 0.99**t), v / (1 - 0.9**t), m / (1 - 0.9**t)
        direction = corrected_v / np.sqrt(corrected_s)
        want = corrected_m / (corrected_v @ direction) * direction
        np.testing.assert_allclose(after - before, want, rtol=1e-11)


@pytest.mark.parametrize("preconditioner", ["adagrad", "adam"])
def test_a_coordinate_that_never_moved_stays(preconditioner):
    """eps = 0 and D = 0 in coordinate 2 always: s = v = 0 there, 0/0 is read as 0, and the others are
    finite.
    """
    still = [d * np.array([1, 1, 0, 1, 1, 1]) for d in DELTAS]
    rule = DoublyAdaptive(beta1=0.9, eps=0.0, preconditioner=preconditioner)
    last = steps(rule, deltas=still)[-1][1]
    assert last[2] == W[2]
    assert np.isfinite(last).all()
    assert (last[[0, 1, 3, 4, 5]] != W[[0, 1, 3, 4, 5]]).all()


ZERO = [np.zeros((3, 6))] * 2
EVERY_RULE = RULES | {
    "FedAdam v0=0": Adaptive(0.1, tau=0.0, initial=0.0),
    "entropy": MirrorDescent(Entropy()),
}


@pytest.mark.parametrize("name", EVERY_RULE)
def test_no_displacement_no_step(name):
    """D_i = 0 for all: m = 0 and v = 0, every quotient is 0/0: the step is 0 and the state stays finite."""
    start = np.abs(W) + 0.1
    for before, after, *_, state in steps(EVERY_RULE[name], start, ZERO):
        np.testing.assert_allclose(after, before, rtol=1e-15)
        assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(state))
        assert float(state.server_lr) in (0.0, 0.1)


def test_opposite_displacements():
    """D_1 = -D_2: v = 0 but m > 0: eta v is 0/0 and the model must stay finite (it stays)."""
    opposite = [np.stack([d[0], -d[0], 0 * d[0]]) for d in DELTAS[:2]]
    for name in ("FedExP", "FedDuAdagrad", "p-norm", "diagonal"):
        for before, after, *_ in steps(RULES[name], deltas=opposite):
            np.testing.assert_array_equal(after, before)


# The root finder behind FedDuA's step: any increasing h with h(0) = 0, steep, flat, overflowing or
# bounded.

# h and its inverse in NumPy, written in a way that loses no digits
FUNCTIONS = {
    "linear": (lambda x, a: a * x, lambda y, a: y / a),
    "cubic": (lambda x, a: a * x**3, lambda y, a: np.cbrt(y / a)),
    "root": (lambda x, a: a * x / (1 + jnp.sqrt(1 + a * x)), lambda y, a: y * (2 + y) / a),
    "exponential": (lambda x, a: jnp.expm1(a * x), lambda y, a: np.log1p(y) / a),
    "logarithm": (lambda x, a: jnp.log1p(a * x), lambda y, a: np.expm1(y) / a),
    "both": (lambda x, a: a * jnp.arcsinh(x), lambda y, a: np.sinh(y / a)),
    "mixture": (lambda x, a: a * x + x**7, None),
    "steep late": (lambda x, a: jnp.sinh(a * x) - 0.5 * a * x, None),
}
_SOLVERS: dict = {}


def solve(name, a, target, dtype=jnp.float64):
    h = FUNCTIONS[name][0]
    if (name, dtype) not in _SOLVERS:
        _SOLVERS[name, dtype] = jax.jit(lambda a, y: solve_increasing(lambda x: h(x, a), y))
    return _SOLVERS[name, dtype](jnp.asarray(a, dtype), jnp.asarray(target, dtype))


def solved(h, target):
    """By one program."""
    return jax.jit(lambda y: solve_increasing(h, y))(target)


@pytest.mark.gate("linear", "exponential", "both")
@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=60, deadline=None)
@given(a=st.floats(-6, 6), y=st.floats(-6, 1))
def test_found_to_rounding(name, a, y):
    """h(eta) = target to 1e-12 of the target, for slopes 1e-6 to 1e6 and targets 1e-6 to 10; so is the
    root.
    """
    with jax.enable_x64(True):
        h, inverse = FUNCTIONS[name]
        a, target = 10.0**a, 10.0**y
        if name == "both":
            a = max(a, target / 100)  # sinh(100) = 1e43 is the largest root tried
        root = solve(name, a, target)
        assert int(root.status) == FOUND
        error = abs(float(h(root.value, a)) - target)
        assert error <= 2e-12 * target
        assert float(root.residual) <= 1e-12
        if inverse is not None:
            assert float(root.value) == pytest.approx(inverse(target, a), rel=1e-9)


def test_the_bracket_may_end_exactly_at_the_root():
    """h(x) = a x: the first guess target / slope is the root up to rounding, on either side of it."""
    for a in np.random.default_rng(0).uniform(1e-3, 1e3, 200):
        root = solve("linear", a, 1.0 / 3.0)
        assert int(root.status) == FOUND
        assert float(root.value) == pytest.approx(1 / (3 * a), rel=1e-12)


def test_overflow_means_too_far():
    """h = exp(50 x) - 1 - 49.999999 x has slope 1e-6 at 0: the first guess 1e6 overflows; the root of 1 is
    .03...
    """
    root = solved(lambda x: jnp.expm1(50 * x) - 49.999999 * x, jnp.asarray(1.0))
    x = float(root.value)
    assert int(root.status) == FOUND
    assert np.expm1(50 * x) - 49.999999 * x == pytest.approx(1.0, rel=1e-11)


def test_not_a_number_means_too_far():
    """h = y^2 / (1 + y), y = exp(2000 x) - 1, is inf/inf at the first guess 1; h = 1 at y = (1 + sqrt 5)/2."""

    def h(x):
        y = jnp.expm1(2000 * x)
        return y**2 / (1 + y)

    root = solved(h, jnp.asarray(1.0))
    assert int(root.status) == FOUND
    assert float(root.value) == pytest.approx(np.log1p((1 + 5**0.5) / 2) / 2000, rel=1e-9)


def test_flat_start():
    """h = x^9 has slope 0 at 0: the search starts at 1 and still finds 10^(1/9) and 1e-3^(1/9)."""
    for y in (10.0, 1e-3):
        root = solved(lambda x: x**9, jnp.asarray(y))
        assert int(root.status) == FOUND
        assert float(root.value) == pytest.approx(y ** (1 / 9), rel=1e-12)


def test_bounded_above():
    """h = 1 - exp(-x) never reaches 2: status 1, a finite step, and the gap 2 - 1 = 1 of 2 as residual."""
    root = solved(lambda x: -jnp.expm1(-x), jnp.asarray(2.0))
    assert int(root.status) == UNBOUNDED
    assert np.isfinite(float(root.value))
    assert float(root.value) > 1
    assert float(root.residual) == pytest.approx(0.5, rel=1e-6)


def test_bounded_above_in_float32():
    """The same in float32, where 200 doublings would overflow."""
    root = solved(lambda x: -jnp.expm1(-x), jnp.asarray(2.0, jnp.float32))
    assert int(root.status) == UNBOUNDED
    assert np.isfinite(float(root.value))


def test_rounding_limits():
    """h = floor(1024 x) / 1024 jumps over .3, from 307/1024 to 308/1024 at x = 308/1024: status 2 and the
    miss.

    The nearer side is 307/1024 = .29980, .00065 of the target away; the bracket ends around the jump.
    """
    root = solved(lambda x: jnp.floor(1024 * x) / 1024, jnp.asarray(0.3))
    assert int(root.status) == UNRESOLVED
    assert float(root.residual) == pytest.approx((0.3 - 307 / 1024) / 0.3, rel=1e-9)
    assert 307 / 1024 <= float(root.value) < 308 / 1024


def test_nothing_to_solve():
    """Target 0: the root is 0, found."""
    root = solved(lambda x: 3 * x, jnp.asarray(0.0))
    assert (float(root.value), float(root.residual), int(root.status)) == (0, 0, FOUND)


def test_float32_is_solved_to_its_own_rounding():
    """Tolerance 4 x 1.2e-7."""
    root = solve("cubic", 2.0, 5.0, jnp.float32)
    assert root.value.dtype == jnp.float32
    assert int(root.status) == FOUND
    assert float(root.value) == pytest.approx(2.5 ** (1 / 3), rel=1e-6)


def test_an_infinite_slope_at_zero():
    """h = sqrt(eta) has an infinite slope at 0, where Newton's first guess is 0: the root of 3 is still 9."""
    with jax.enable_x64(True):
        root = solved(jnp.sqrt, jnp.asarray(3.0))
    assert int(root.status) == 0
    assert float(root.value) == pytest.approx(9.0, rel=1e-11)
