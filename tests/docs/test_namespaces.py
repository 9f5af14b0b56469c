"""What a user sees of each namespace, by `dir` or tab, is what it offers: no `jnp`, no `Any`."""

from __future__ import annotations

import importlib
import types

import pytest

import fedsolve as fs

SPACES = [name for name in dir(fs) if isinstance(getattr(fs, name), types.ModuleType)]


def test_there_are_all_of_them():
    assert {
        "sampling",
        "schedules",
        "callbacks",
        "baselines",
        "wire",
        "catalogue",
        "geometry",
        "flower",
    } <= set(SPACES)


@pytest.mark.parametrize("name", SPACES)
def test_a_namespace_shows_what_it_offers(name):
    """`__all__` has no name twice, each is there, none is somebody else's, and `dir` shows these alone."""
    space = getattr(fs, name)
    offered = space.__all__
    assert len(offered) == len(set(offered)) > 0
    assert dir(space) == sorted(offered)
    for own in offered:
        value = getattr(space, own)
        assert not own.startswith("_")
        if isinstance(value, type | types.FunctionType | types.ModuleType):
            home = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
            assert home.startswith("fedsolve."), own


@pytest.mark.parametrize("name", SPACES)
def test_a_namespace_is_imported_by_its_public_name(name):
    """It is the one module, and keeps the name that it has in its package."""
    space = importlib.import_module(f"fedsolve.{name}")
    assert space is getattr(fs, name)
    assert space.__spec__.name == space.__name__


@pytest.mark.parametrize("name", SPACES)
def test_a_namespace_offers_its_public_classes(name):
    """A class or function that a namespace's own file defines for users, by its name, is offered or begins with _."""
    space = getattr(fs, name)
    internal = {
        "attacks": {"Marked", "client_numbers"},
        "callbacks": {"check_callbacks", "notify_ended", "stop_reason"},
        "catalogue": {"current_name", "load_home", "short", "split_name", "title", "wrapper_entry"},
        "diagnostics": {"measures_of"},
        "flower": {"check_flower"},
        "frank_wolfe": {  # the methods are names of `fs` itself
            "FedFW", "FedFWBroadcast", "FedFWChange", "FedFWClient", "FedFWMessage", "FedFWPlus", "FedFWServer",
            "FedFWSto",
        },
        "geometry": {"build_geometry"},
        "metrics": {
            "OnModel", "SumMetric", "columns_of_each", "describe", "described", "labels_of", "on_model",
            "outputs_of", "refuse_weighted", "scores_of",
        },
        "sampling": {
            "as_given", "bounds_of", "check_everyone", "check_size", "choose", "choose_at_most", "different",
            "draw_binomial", "exponentials", "in_turn", "is_few", "is_small", "logs_of", "most_successes", "shuffled",
            "successively", "true_first",
        },
        "schedules": {"as_count"},
        "systems": {"as_tasks", "asynchronous", "check_places", "synchronous"},
        "trackers": {"Sender", "package"},
        "wire": {"ring_of_words", "ring_words"},
    }  # fmt: skip
    own = {
        n
        for n, x in vars(space).items()
        if isinstance(x, type | types.FunctionType)
        and x.__module__ == space.__name__
        and not n.startswith("_")
    }
    assert own - set(space.__all__) <= internal.get(name, set())
