"""One description of a run: signatures, help, the section [run] and the command line are made from `RunOptions`."""

import inspect
from dataclasses import fields
from typing import get_type_hints

import pytest

import fedsolve as fs
from fedsolve.cli.configuration.config import RunSection
from fedsolve.cli.main import app
from fedsolve.config.signatures import about_of
from fedsolve.engine.options import RunKeywords, RunOptions, SweepKeywords, written_options

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
