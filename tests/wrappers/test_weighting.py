"""However a method is built, its clients count alike: by name, by a factory, by its parts, or by a wrapper."""

import optax
import pytest

import fedsolve as fs
from fedsolve.config.build import example_of
from fedsolve.config.catalogue import ALGORITHMS
from fedsolve.geometry import L1, PNorm

PSI = L1(0.1)
WAYS = {
    "SCAFFOLD": (
        "uniform",
        (
            fs.SCAFFOLD(0.1),
            fs.ControlVariates(fs.FedAvg(0.1)),
            fs.build("SCAFFOLD"),
            fs.build("SCAFFOLD+FedAvg"),
        ),
    ),
    "FedProx": (
        "examples",
        (fs.FedProx(0.1), fs.Proximal(fs.FedAvg(0.1), 0.1), fs.build("FedProx"), fs.build("FedProx+FedAvg")),
    ),
    "Subgradient": (
        "uniform",
        (
            fs.Subgradient(fs.FedAvg(0.1), PSI),
            fs.build("Subgradient", {"psi": PSI}),
            fs.build("Subgradient+FedAvg", {"psi": PSI}),
        ),
    ),
    "FedMiDOSP": (
        "uniform",
        (fs.FedMiDOSP(PSI), fs.FedMiD(PSI, server_only=True), fs.build("FedMiDOSP", {"psi": PSI})),
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_every_way_gives_one_weighting(name):
    wanted, ways = WAYS[name]
    assert {(method.name, method.weighting) for method in ways} == {(name, wanted)}


# of every server optimiser: methods that step by it as their paper has it, built by name
NAMED = {
    "ServerSGD": (fs.FedAvg(), fs.FedAvgM()),
    "Adaptive": (fs.FedAdagrad(), fs.FedAdam(), fs.FedYogi(), fs.FedAdam(preset="flower")),
    "DoublyAdaptive": (
        fs.FedExP(),
        fs.FedExP(preset="original"),
        fs.FedExPM(),
        fs.FedDuAdagrad(),
        fs.FedDuAdam(),
    ),
    "MirrorDescent": (fs.FedDuA(PNorm(1.5)),),
    "NormalizedAveraging": (fs.FedNova(),),
    "PrimalAveraging": (fs.GPA(),),
    "GradientDiversity": (fs.FedExProx(),),
    "EnvelopePolyak": (fs.FedExProx(extrapolation="StoPS"),),
    "Extrapolated": (fs.FedAdamExpSLS(),),
    "LargestStep": (fs.FedLiLS(server="max"),),
    "DeepFrankWolfe": (fs.FedLiLU(),),
    "DoG": (fs.FedDoG(),),
    "Prodigy": (fs.FedProdigy(),),
    "DAdaptation": (fs.FedDAdaptation(),),
    # of no paper here: as every mean
    "ServerMuon": (),
    "ServerLMO": (),
    "Polyak": (),
    "OptaxRule": (),
}
# what is not its server optimiser's: the method, the optimiser, its weighting, the method's
OTHERWISE = {
    "FedLiLS": (fs.FedLiLS(), "ServerSGD", "uniform"),
    "FedExProx": (fs.FedExProx(alpha=1.5), "ServerSGD", "uniform"),
    "DiLoCo": (fs.DiLoCo(), "ServerSGD", "uniform"),
    "MuLoCo": (fs.MuLoCo(), "ServerSGD", "uniform"),
    "SparseLoCo": (fs.SparseLoCo(), "ServerSGD", "uniform"),
    "FedDeltaSGD": (fs.FedDeltaSGD(), "ServerSGD", "uniform"),
    "FedZO": (fs.FedZO(), "ServerSGD", "uniform"),
    "FedExpSLS": (fs.FedExpSLS(), "DoublyAdaptive", "examples"),
    "FedExP code": (fs.FedExP(preset="code"), "DoublyAdaptive", "examples"),
    "FedLiLU code": (fs.FedLiLU(preset="code"), "DeepFrankWolfe", "examples"),
}


def parts(method):
    """The `FedOpt` that a method is, below the wrappers that name it."""
    while not isinstance(method, fs.FedOpt):
        method = method.inner
    return method


def optimizers():
    """Every concrete server optimiser of `fs.server`."""
    classes = (getattr(fs.server, name) for name in fs.server.__all__)
    return {c.__name__ for c in classes if isinstance(c, type) and not c.__abstractmethods__}


def test_every_server_optimizer_is_here():
    assert optimizers() == set(NAMED)
    built = {type(parts(fs.build(name, example_of(name))).server_optimizer).__name__ for name in of_fedopt()}
    assert built <= set(NAMED)


def of_fedopt():
    """The methods of the catalogue that are a solver and a server optimiser."""
    rows = {name: fs.build(name, example_of(name)) for name in ALGORITHMS if not ALGORITHMS[name].wrapper}
    return [name for name, method in rows.items() if isinstance(method, (fs.FedOpt, fs.Proximal))]


def assembled(method):
    """The same solver and server optimiser, by hand."""
    return fs.FedOpt(parts(method).local, parts(method).server_optimizer)


@pytest.mark.parametrize("name", NAMED)
def test_a_method_and_its_parts_count_alike(name):
    for method in NAMED[name]:
        assert type(parts(method).server_optimizer).__name__ == name
        assert assembled(method).weighting == method.weighting


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_its_parts_do_not_say(name):
    """Papers that average otherwise than the one of their server step: the name says so, and FedOpt's page."""
    method, optimizer, wanted = OTHERWISE[name]
    assert type(parts(method).server_optimizer).__name__ == optimizer
    assert method.weighting == wanted != assembled(method).weighting


def test_parts_that_no_paper_names_count_by_examples():
    for optimizer in (fs.server.Polyak(), fs.server.Optax(optax.adam, learning_rate=0.1)):
        assert fs.FedOpt(fs.client.SGD(0.1), optimizer).weighting == "examples"
        assert fs.FedOpt(fs.client.SGD(0.1), optimizer, weighting="uniform").weighting == "uniform"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_of_the_catalogue(name):
    """What a row builds counts as its parts do, unless it is listed above or a wrapper has its own."""
    method = fs.build(name, example_of(name))
    if isinstance(method, fs.FedOpt) and name not in OTHERWISE:
        assert assembled(method).weighting == method.weighting


OUTERMOST = ("FedPer", "FedRep", "IFCA")  # nothing goes around them


@pytest.mark.parametrize(
    "inner", [name for name, row in ALGORITHMS.items() if not row.wrapper and name not in OUTERMOST]
)
def test_a_wrapper_says_whose_weighting_it_takes(inner):
    """FedProx takes the inner method's; SCAFFOLD and Subgradient their paper's, whatever the inner method has."""
    given = example_of(inner)
    alone = fs.build(inner, given)
    assert fs.build(f"FedProx+{inner}", given).weighting == alone.weighting
    assert fs.build(f"SCAFFOLD+{inner}", given | {"option": "I"}).weighting == "uniform"
    assert fs.ControlVariates(alone, option="I").weighting == "uniform"
    assert fs.ControlVariates(alone, option="I", weighting="examples").weighting == "examples"


def test_a_weighting_that_is_asked_for_is_taken():
    for name in ("SCAFFOLD", "SCAFFOLD+FedAdam", "FedProx", "FedProx+FedAdam"):
        for weighting in ("uniform", "examples"):
            assert fs.build(name, {"weighting": weighting}).weighting == weighting
    with pytest.raises(fs.InvalidInput, match="weighting"):
        fs.ControlVariates(fs.FedAvg(0.1), weighting="sizes")


def test_positional_rates_are_refused():
    """A first number means what defines the method; FedLiLS has no rate that it could be."""
    for call in (lambda: fs.FedLiLS(0.1), lambda: fs.FedAvg(0.1, 1.0), lambda: fs.FedDuAdam(0.1, 0.01)):
        with pytest.raises(TypeError, match="positional argument"):
            call()
