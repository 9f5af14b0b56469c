"""What a field may hold by its resolved annotation: every field of every part is known, and holds nothing else."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.deploy.method_spec import classes, fits, from_spec, is_known, kinds_of, to_spec

FIELDS = {
    f"{name}.{field.name}": (cls, field.name)
    for name, cls in classes().items()
    for field in dataclasses.fields(cls)  # pyright: ignore[reportArgumentType]
    if field.init
}
STRANGE = (object(), {"a": object()}, (object(),), np.array([object()]), np.array("text"), os)


def test_every_field_is_known():
    """A field whose annotation says nothing stands in the table of `deploy.kinds` by its name."""
    assert len(FIELDS) > 190
    assert [name for name, (cls, field) in FIELDS.items() if not is_known(kinds_of(cls).get(field))] == []


def test_no_field_takes_what_is_of_no_kind():
    for name, (cls, field) in FIELDS.items():
        assert not [value for value in STRANGE if fits(value, kinds_of(cls)[field])], name


@dataclasses.dataclass
class Unsaid:
    """Annotations of no known kind, known ones, and one that cannot be resolved."""

    anything: Any
    inside: tuple[Any, ...]
    number: int


@dataclasses.dataclass
class Unresolved:
    value: Nowhere  # pyright: ignore[reportUndefinedVariable]


def test_an_annotation_that_says_nothing_is_not_known():
    kinds = kinds_of(Unsaid)
    assert [is_known(kinds[name]) for name in ("anything", "inside", "number")] == [False, False, True]
    assert not fits(1, kinds["anything"])
    assert kinds_of(Unresolved) == {}
    assert not is_known(kinds_of(Unresolved).get("value"))


@pytest.mark.parametrize(
    ("method", "field", "value"),
    [
        (fs.FedAvg(0.1), "weighting", "by size"),
        (fs.FedAvg(0.1), "weighting", {"list": ["uniform"]}),
        (fs.FedAvg(0.1), "name", 3),
        (fs.Personal(fs.FedAvg(0.1), "bias"), "leaves", {"tuple": ["a", 3]}),
        (fs.ControlVariates(fs.FedAvg(0.1)), "option", "III"),
        (fs.FedLiLS(), "name", None),
    ],
)
def test_a_value_of_another_kind_is_refused(method, field, value):
    spec = to_spec(method)
    assert from_spec(spec) is not None
    spec["fields"][field] = value
    with pytest.raises(fs.InvalidInput, match=f"of the server has {field} of type .*same version"):
        from_spec(spec)


def test_numbers_are_no_booleans_and_texts_of_a_choice_are_themselves():
    kinds = {name: kinds_of(cls)[field] for name, (cls, field) in FIELDS.items()}
    rate = next(kind for name, kind in kinds.items() if name.endswith("FedMiD.client_lr"))
    assert [fits(x, rate) for x in (0.1, np.float32(1), True, None, "0.1", np.ones(2))] == [
        True, True, False, False, False, False,
    ]  # fmt: skip
    reset = next(kind for name, kind in kinds.items() if name.endswith("Armijo.reset"))
    assert [fits(x, reset) for x in (0, 2, 3, True, 1.0)] == [True, True, False, False, False]
