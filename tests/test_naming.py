"""The name and the settings of a method are those that it was made of, or none are."""

import dataclasses
import inspect
from dataclasses import fields
from typing import get_type_hints

import jax
import pytest

import fedsolve as fs
from fedsolve.cli.configuration.config import RunSection
from fedsolve.cli.main import app
from fedsolve.config.build import arguments, build, example_of, from_plain, recipe_of, registries, to_plain
from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS
from fedsolve.config.signatures import about_of
from fedsolve.core.algorithm import name_of
from fedsolve.core.building import Made, Registry, record_of
from fedsolve.core.types import module
from fedsolve.engine.identity import describe
from fedsolve.engine.options import RunKeywords, RunOptions, SweepKeywords, written_options
from fedsolve.geometry import L1
from fedsolve.geometry.mirrors import Mirror

NAMES = [
    *ALGORITHMS,
    *(f"{wrapper}+FedAvg" for wrapper in WRAPPERS),
    "SCAFFOLD+FedDuAdam",
]
OTHER = {"client_lr": 0.037, "weighting": "uniform"}


@pytest.mark.parametrize("name", NAMES)
def test_every_method_of_the_catalogue_is_built_again(name):
    """With a rate and a weighting that are no defaults, where it takes them."""
    settings = example_of(name) | {key: value for key, value in OTHER.items() if key in arguments(name)}
    method = build(name, settings)
    found = recipe_of(method)
    row = name.removesuffix("+FedAvg")
    assert found is not None, (
        f"no name and settings build {name} again: put @by_name({row!r}) on its function, and on a wrapper's class "
        f"@class_by_name({row!r}); give its settings types that a configuration can write"
    )
    assert describe(build(*found)) == describe(method)
    if name in ALGORITHMS:
        assert name_of(method) == name, (
            f"tables call {name} {name_of(method)}: give a FedOpt name={name!r}, a wrapper a `title` equal to {name!r}"
        )


def test_objects_are_told_as_a_configuration_writes_them():
    rate = fs.schedules.Exponential(0.1, 0.9)
    name, settings = recipe_of(fs.FedMiD(L1(0.01).on("w") + L1(0.3).on("b"), rate))
    assert name == "FedMiD"
    assert settings["psi"] == [
        {"name": "L1", "weight": 0.01, "on": "w"},
        {"name": "L1", "weight": 0.3, "on": "b"},
    ]
    assert settings["client_lr"] == {"schedule": "exponential", "initial": 0.1, "decay": 0.9}
    rate = fs.schedules.ReduceOnPlateau(0.1, "train_loss", 3, factor=0.5)
    _, settings = recipe_of(fs.FedAdam(rate, server_lr=fs.schedules.InverseSqrt(0.2)))
    assert settings["client_lr"] == {
        "schedule": "reduce_on_plateau", "initial": 0.1, "metric": "train_loss", "patience": 3, "factor": 0.5,
        "min_delta": 0.0, "min_lr": 1e-8,
    }  # fmt: skip
    assert settings["server_lr"] == {"schedule": "inverse_sqrt", "initial": 0.2}
    assert recipe_of(fs.FedYogi(preset="google-research", tau=1e-2)) == (
        "FedYogi",
        {"preset": "google-research", "tau": 0.01},
    )


def test_no_name_is_better_than_a_wrong_one():
    """A method put together from parts of its own, by no name or by that of another; inside a wrapper as well."""
    method = fs.FedOpt(fs.client.SGD(0.1), fs.server.Adaptive(0.1))
    called = dataclasses.replace(fs.FedAvg(0.1), server_optimizer=fs.server.Adaptive(0.1))
    assert called.name == "FedAvg"
    assert [recipe_of(m) for m in (method, called, fs.ControlVariates(called))] == [None] * 3


def test_a_record_is_beside_the_method_and_never_lies():
    """No part of equality, of the pytree or of what is printed; gone wherever a part may have been replaced."""
    method = fs.FedAdam(0.05, client_momentum=0.9)
    assert record_of(method) == Made("FedAdam", {"client_lr": 0.05, "client_momentum": 0.9})
    assert method == fs.FedAdam(client_lr=0.05, client_momentum=0.9)
    assert "made_by" not in repr(method)
    assert record_of(dataclasses.replace(method, name="mine")) is None
    assert record_of(jax.tree.map(lambda x: 2 * x, method)) is None
    assert record_of(jax.jit(lambda m: m)(method)) is None
    wrapped = fs.ControlVariates(method)
    assert recipe_of(wrapped) == ("SCAFFOLD+FedAdam", {"client_lr": 0.05, "client_momentum": 0.9})
    assert recipe_of(dataclasses.replace(wrapped, inner=fs.FedAvg(0.2))) == (
        "SCAFFOLD+FedAvg",
        {"client_lr": 0.2},
    )


def test_what_a_class_fills_in_itself_is_no_setting():
    method = fs.privacy.LocalDifferentialPrivacy(fs.FedAvg(weighting="uniform"), 0.5, epsilon=8.0, delta=1e-5)
    settings = {"clip_norm": 0.5, "epsilon": 8.0, "delta": 1e-5, "weighting": "uniform"}
    assert recipe_of(method) == ("LocalDP+FedAvg", settings)


def test_a_class_of_ones_own_with_a_name_of_the_catalogue_is_not_taken_for_it():
    @module
    class L1(fs.geometry.L1):
        pass

    assert recipe_of(fs.FedMiD(L1(0.1))) is None


# One table of names for each kind: builders, their parameters, and errors that name the nearest match.


@dataclasses.dataclass
class Step:
    size: float
    kind: str = dataclasses.field(default="plain", metadata={"static": True})


STEPS = Registry("step", {"Step": Step}, any_spelling=True)


def test_an_object_is_built_from_its_name_and_parameters():
    assert STEPS.build("x", {"name": "st_ep", "size": 2, "kind": "other"}) == Step(2, "other")
    assert STEPS.name_of(Step(1.0)) == "Step"
    assert STEPS.name_of(1.0) is None


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (1.0, "step of x = 1.0 must be a table with a name: Step"),
        ({"size": 1.0}, "must be a table with a name: Step"),
        ({"name": "Stop"}, "unknown step of x 'Stop': did you mean 'Step'"),
        ({"name": ["Step"]}, "unknown step of x"),
        ({"name": "Step", "sise": 1.0}, "unknown parameter of Step 'sise': did you mean 'size'"),
        ({"name": "Step", "size": "a"}, "Step: size = 'a' must be a number"),
        ("Step", "Step needs size"),
    ],
)
def test_what_does_not_fit_is_named(table, words):
    with pytest.raises(fs.InvalidInput, match=words):
        STEPS.build("x", table)


def test_an_unknown_name_of_any_kind_is_refused_with_its_nearest():
    for registry in (*registries().values(), fs.catalogue.ALGORITHMS, fs.tasks.TASKS, fs.data.PARTITIONS):
        name = next(iter(registry))
        with pytest.raises(fs.InvalidInput, match=f"unknown {registry.kind} '{name}x': did you mean"):
            registry.find(f"{name}x")


def test_objects_are_written_as_the_tables_that_build_them():
    table = {"name": "PNorm", "p": 1.5}
    assert to_plain(from_plain("mirror", table, Mirror)) == table


# One description of a run: signatures, help, the section [run] and the command line are made from `RunOptions`.

OPTIONS = {f.name: f for f in fields(RunOptions)}
SWEPT = {name for name, f in OPTIONS.items() if about_of(f).swept}


@pytest.mark.parametrize(("function", "names"), [(fs.run, set(OPTIONS)), (fs.sweep, SWEPT)])
def test_a_signature_shows_every_option_with_its_default(function, names):
    shown = inspect.signature(function).parameters
    assert names == set(OPTIONS) & set(shown)
    assert shown["rounds"].default is inspect.Parameter.empty
    for name in names - {"rounds"}:
        assert shown[name].default == OPTIONS[name].default
        assert f"    {name}: {about_of(OPTIONS[name]).text}" in function.__doc__
    assert "**options" not in function.__doc__


def test_type_checkers_see_the_same_options():
    """The keywords for type checkers are the one list that is written again."""
    kinds = {"Sampling": object, "Fleet": object}
    options = get_type_hints(RunOptions, localns=kinds)
    assert get_type_hints(RunKeywords, localns=kinds) == options
    assert get_type_hints(SweepKeywords, localns=kinds) == {k: v for k, v in options.items() if k in SWEPT}


@pytest.mark.parametrize(("command", "swept"), [("run", False), ("compare", False), ("sweep", True)])
def test_a_command_has_every_option_that_can_be_written(command, swept):
    import typer

    parameters = typer.main.get_command(app).commands[command].params
    swept_too = [o for o in written_options() if o.about.swept or not swept]
    wanted = {o.name for o in swept_too if not o.about.axes}  # tables are for a file
    assert wanted == {p.name for p in parameters} & {o.name for o in written_options()}
    assert {o.name for o in written_options()} == set(RunSection.model_fields)


def test_a_keyword_that_there_is_not_is_refused_as_pythons():
    task = fs.tasks.digits()
    with pytest.raises(TypeError, match=r"run\(\) got an unexpected keyword argument 'round'"):
        fs.run(fs.FedAvg(0.1), task, rounds=3, round=3)
    with pytest.raises(TypeError, match=r"run\(\) missing a required .*'rounds'"):
        fs.run(fs.FedAvg(0.1), task)
    with pytest.raises(TypeError, match=r"sweep\(\) got an unexpected keyword argument 'devices'"):
        fs.sweep("FedAvg", task, {"client_lr": [0.1]}, rounds=1, devices=2)
    with pytest.raises(fs.InvalidInput, match="lanes is called parallel_trials now"):
        fs.sweep("FedAvg", task, {"client_lr": [0.1]}, rounds=1, lanes=2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rounds": 0}, "rounds = 0 must be an integer of at least 1"),
        ({"rounds": 2**31}, r"rounds = 2147483648 must be below 2\^31"),
        ({"rounds": 1, "seed": 2**32}, r"must be below 2\^32"),
        (
            {"rounds": 1, "batch_size": "half"},
            "batch_size = 'half' must be an integer of at least 1 or 'full'",
        ),
        ({"rounds": 1, "dtype": "float16"}, "dtype = 'float16' must be 'float32' or 'float64'"),
        ({"rounds": 1, "epochs": 1, "local_steps": 1}, "give epochs or local_steps, not both"),
        (
            {"rounds": 1, "clients_per_round": 1, "sampling": fs.sampling.Uniform(1)},
            "give clients_per_round or sampling, not both",
        ),
    ],
)
def test_what_is_out_of_range_is_refused_at_construction(given, message):
    with pytest.raises(fs.InvalidInput, match=message):
        RunOptions(**given)
