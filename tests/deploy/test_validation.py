"""What a reply may say: numbers that are counted, claimed or summed, and words that reach a log."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy import codec
from fedsolve.deploy.method_spec import classes, fits, from_spec, is_known, kinds_of, to_spec
from fedsolve.deploy.reply_checks import check_buffer_values, check_claims, check_examples, check_size
from fedsolve.deploy.sanitize import reading, sanitize, without_folders
from fedsolve.methods.algorithms.mirror_descent import FedMiDMessage
from fedsolve.methods.client.solver import Search
from fedsolve.methods.privacy.central import PrivateMessage
from fedsolve.methods.server.dua import ClientStep, Spread
from fedsolve.methods.server.fedopt import FedOptMessage
from fedsolve.methods.wrappers.control_variates import ScaffoldMessage

DELTA = {"w": np.array([3.0, 4.0])}


def sent(measured=(), search=()):
    return FedOptMessage(DELTA, np.array(1.0), measured, search)


TRUE = [
    sent(Spread(np.array(25.0))),
    sent(Spread(np.array(25.1))),  # 0.4 % off: sums of many squares are rounded
    sent(ClientStep(np.array(0.0)), Search(np.array(0.5), np.array(3.5), ())),
    ScaffoldMessage(sent(Spread(np.array(25.0))), DELTA),
    PrivateMessage(sent(Spread(np.array(25.0))), np.array(1.0)),
    PrivateMessage(sent(), ()),
    FedMiDMessage(DELTA, np.array(0.3)),
]
FALSE = [
    (sent(Spread(np.array(1e6))), "its squared_norm is 1e+06, but 25 by its update"),
    (sent(Spread(np.array(24.0))), "its squared_norm is 24, but 25 by its update"),
    (sent(Spread(np.array(0.0))), "its squared_norm is 0, but 25"),
    (sent(Spread(np.array(-25.0))), "its squared_norm is -25: it must be at least 0"),
    (ScaffoldMessage(sent(Spread(np.array(26.0))), DELTA), "its squared_norm is 26, but 25"),
    (PrivateMessage(sent(Spread(np.array(26.0))), np.array(1.0)), "its squared_norm is 26, but 25"),
    (sent(ClientStep(np.array(-1.0))), "its step is -1: it must be at least 0"),
    (sent((), Search(np.array(1.0), np.array(-2.0), ())), "its evaluations is -2"),
    (
        PrivateMessage(sent(), np.array(-1e4)),
        "its within is -10000: it must be at least 0 and at most 1 and whole",
    ),
    (PrivateMessage(sent(), np.array(2.0)), "its within is 2"),
    (PrivateMessage(sent(), np.array(0.5)), "its within is 0.5"),
    (FedMiDMessage(DELTA, np.array(-0.3)), "its rate_sum is -0.3"),
]


def test_what_follows_from_a_displacement_is_not_believed():
    for message in TRUE:
        check_claims(message)
    for message, said in FALSE:
        with pytest.raises(InvalidInput) as refused:
            check_claims(message)
        assert said in str(refused.value)


def test_a_number_of_examples():
    for examples in (1, 12, 2**31 - 1):
        check_examples(examples)
    for examples in (0, -1, 2**31, 10**18, True, 1.0, float("nan"), "12", None, [1]):
        with pytest.raises(InvalidInput, match="examples"):
            check_examples(examples)


def test_what_is_sent_beside_the_model():
    known = {"mean": np.zeros(2, np.float32)}
    good = np.ones(2, np.float32)
    check_buffer_values(known, {"mean": good})
    for sent, said in (
        ({"mean": np.array([1.0, np.nan], np.float32)}, "its buffer mean is not finite"),
        ({"mean": np.array([np.inf, 1.0], np.float32)}, "is not finite"),
        ({"mean": good.astype(np.float64)}, "its mean is float64"),
        ({"mean": np.ones(3, np.float32)}, r"of shape \(3,\)"),
        ({}, "it lacks the buffer mean"),
        ({"mean": good, "more": good}, "it has the buffer more"),
    ):
        with pytest.raises(InvalidInput, match=said):
            check_buffer_values(known, sent)


def test_sums_must_fit_their_type():
    """A finite message that overflows once it is weighted and summed is refused by itself."""
    check_size(1e18, 1e18, 100.0, 10, jnp.float32)
    for norm, largest, weight in ((3e38, 3e38, 10.0), (2e19, 1e10, 1.0), (1e15, 1e15, 2.0**31 * 1e14)):
        with pytest.raises(InvalidInput, match="too large for sums in float32"):
            check_size(norm, largest, weight, 10, jnp.float32)
    check_size(1e30, 1e30, 100.0, 10, jnp.float64)
    check_size(300.0, 10.0, 100.0, 10, jnp.float16)


def test_words_of_others():
    """Cut, one line, nothing that a terminal obeys; of an exception that is not ours the type alone."""
    assert len(sanitize("x" * 10**6)) < 400
    assert sanitize("a\n\tb \x1b[2J\u202e") == "a b \\x1b[2J\\u202e"
    assert codec.refusal(ValueError("patient 12 has HIV"))["refused"]["why"].startswith("ValueError, see")
    assert "HIV" not in str(codec.refusal(KeyError("HIV")))
    assert codec.refusal(InvalidInput("lower\nthe rate"))["refused"]["why"] == "lower the rate"
    where = InvalidInput("cannot read '/home/ann/my data/x.npy' or state/client-1/reply.bin: bring it back")
    why = "cannot read 'x.npy' or reply.bin: bring it back"
    assert codec.refusal(where, folder="state")["refused"]["why"] == why
    with (
        pytest.raises(InvalidInput, match=r"^the reply cannot be read \(ZeroDivisionError\)"),
        reading("the reply"),
    ):
        raise ZeroDivisionError("secret")


@pytest.mark.parametrize(
    "path",
    ["/home/ann/x/", "~ann/x/", "../ann/x/", "C:\\Users\\ann\\", "file:///home/ann/", "/home/ann lee/x/"],
)
@pytest.mark.parametrize(
    "around", ["{}", "'{}'", "[{}]", "<{}>", "`{}`", "data={}", "at:{}", "1,{}", "“{}”", "->{}"]
)
def test_no_folder_leaves_the_node_however_it_is_written(path, around):
    """What is no path stays."""
    assert (
        without_folders(f"cannot read {around.format(path + 'y.bin')}")
        == f"cannot read {around.format('y.bin')}"
    )
    for words in ("1/2 of it, 3 / 4, (a + b)/2", "loss/accuracy", "see https://host.example/a/b"):
        assert without_folders(words) == words


# What a field may hold by its resolved annotation: every field of every part is known, and holds nothing else.

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
