"""The options of both apps stand in their signatures, once: what a run's configuration may change has their names."""

import contextlib
import dataclasses
import inspect
import math
import tomllib
from pathlib import Path

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.deploy.server.settings import Settings

TEMPLATE = Path(fs.__file__).parent / "cli/federation/templates/pyproject.toml.txt"
MODEL = {"w": np.zeros(2, np.float32)}


def test_the_signature_is_that_of_the_settings():
    """Each option is written once, in `Settings`: its type, default, words and check."""
    arguments = inspect.signature(fs.flower.server_app).parameters
    options = dataclasses.fields(Settings)
    assert list(arguments) == ["algorithm", "params", *(field.name for field in options)]
    for field in options:
        argument = arguments[field.name]
        required = field.default is dataclasses.MISSING
        assert argument.kind is inspect.Parameter.KEYWORD_ONLY
        assert argument.annotation == field.type
        assert argument.default == (inspect.Parameter.empty if required else field.default)


def test_a_configuration_changes_plain_data_alone():
    settings = Settings(rounds=1, population=3, label="mine")
    beside = {"sampling", "buffers", "schema", "evaluate", "callbacks", "label"}
    assert set(settings.configurable()) == {field.name for field in dataclasses.fields(Settings)} - beside
    changed = settings.overridden({"rounds": 2, "label": "theirs", "evaluate": "x", "out": "there"})
    assert (changed.rounds, changed.label, changed.evaluate, changed.out) == (2, "mine", None, "there")


def test_without_an_option_that_must_be_given():
    with pytest.raises(TypeError, match=r"^server_app\(\) missing .*'population'"):
        fs.flower.server_app(fs.FedAvg(0.1), MODEL, rounds=1)


@pytest.mark.parametrize("app", [fs.flower.server_app, fs.flower.client_app])
def test_every_option_is_documented(app):
    page = inspect.getdoc(app)
    for name in inspect.signature(app).parameters:
        assert f"\n    {name}: " in page


def test_a_template_gives_settings_their_own_names():
    text = TEMPLATE.read_text().replace("$clients", "3").replace("$half", "2")
    config = tomllib.loads(text)["tool"]["flwr"]["app"]["config"]
    known = {field.name.replace("_", "-") for field in dataclasses.fields(Settings)}
    of_jobs = {"job", "model", "columns", "analysis", "min-clients", "min-rows", "secure"}
    assert set(config) - known - of_jobs == {"method", "client-lr"}
    changed = Settings(rounds=1, population=3).overridden(config)
    assert changed.min_replies == 2
    assert changed.takeover is True


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: fs.flower.server_app(fs.FedAvg(0.1), MODEL, rounds=1, population=2, round_second=9.0),
            "unknown argument of server_app 'round_second': did you mean 'round_seconds'?",
        ),
        (
            lambda: fs.flower.server_app(fs.FedAvg(0.1), MODEL, rounds=1, population=2, min_reply=1),
            "unknown argument of server_app 'min_reply': did you mean 'min_replies'?",
        ),
        (
            lambda: fs.flower.client_app(lambda node: None, max_epsilons=8.0),
            "unknown argument of client_app 'max_epsilons': did you mean 'max_epsilon'?",
        ),
        (
            lambda: fs.flower.server_app(fs.FedAvg(0.1), MODEL, rounds=1, population=2, quorum=3),
            "quorum = 3 but the federation has 2 clients",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(call, said):
    with pytest.raises(fs.InvalidInput) as refused:
        call()
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


ODD = {
    "nan": math.nan, "-1": -1, "text": "x", "3.0": 3.0, "none": None, "true": True, "list": [1], "huge": 10**30,
    "bytes": b"x", "table": {1: 2}, "table of text": {"a": "b"}, "object": object(), "no file": "/nope/none",
    "folder": "/",
}  # fmt: skip
TAKEN = {
    **dict.fromkeys(("clients_per_round", "quorum", "min_replies", "max_share", "metrics_address"), "none"),
    **dict.fromkeys(("sampling", "buffers", "schema", "evaluate", "statistics", "peers"), "none"),
    **dict.fromkeys(("connect_seconds", "round_seconds", "over_select"), "3.0, huge"),
    **dict.fromkeys(("grace", "norm_bound", "max_epsilon", "min_noise"), "none, 3.0, huge"),
    **dict.fromkeys(("resume", "takeover", "second_sums"), "true"),
    "client_metrics": "text, no file, folder",
    "out": "text, no file, folder",
    **dict.fromkeys(("label", "initial"), "none, text, no file, folder"),
    **dict.fromkeys(("min_rows", "max_questions"), "huge"),
    "min_sum": "none, huge",
}
"""Of each option, what is taken: all else is refused when the app is made, not in its first run."""
OPTIONS = [
    *((fs.flower.server_app, (fs.FedAvg(0.1), MODEL), field.name) for field in dataclasses.fields(Settings)),
    *(
        (fs.flower.client_app, (lambda node: None,), name)
        for name in list(inspect.signature(fs.flower.client_app).parameters)[1:]
    ),
]


@pytest.mark.parametrize(
    ("app", "given", "name"), OPTIONS, ids=[f"{app.__name__} {name}" for app, _, name in OPTIONS]
)
def test_what_no_run_could_use_is_refused_when_the_app_is_made(app, given, name):
    plain = {"rounds": 1, "population": 2} if app is fs.flower.server_app else {}
    taken = set()
    for kind, value in ODD.items():
        with contextlib.suppress(fs.InvalidInput):
            app(*given, **{**plain, name: value})
            taken.add(kind)
    assert taken == set(TAKEN.get(name, "").split(", ")) - {""}


@pytest.mark.parametrize(
    "params",
    [*ODD.values(), np.zeros(2, int), np.zeros(2, complex), {"w": "x"}, {"w": np.array([1.0, np.nan])}],
)
def test_what_is_no_model_is_refused_when_the_app_is_made(params):
    with pytest.raises(fs.InvalidInput, match=r"the model"):
        fs.flower.server_app(fs.FedAvg(0.1), params, rounds=1, population=2)


def test_peers_are_read_when_the_app_is_made(tmp_path):
    path = tmp_path / "peers.toml"
    path.write_text(f'0 = "{"ab" * 32}"\n')
    fs.flower.client_app(lambda node: None, peers=path)
    path.write_text('0 = "ab"\n')
    with pytest.raises(fs.InvalidInput, match="is no client's number with its public key"):
        fs.flower.client_app(lambda node: None, peers=path)
