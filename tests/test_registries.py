"""One table of names for each kind: builders, their parameters, and errors that name the nearest match."""

from __future__ import annotations

import dataclasses

import pytest

import fedsolve as fs
from fedsolve.config.build import from_plain, registries, to_plain
from fedsolve.core.building import Registry
from fedsolve.geometry.mirrors import Mirror


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
