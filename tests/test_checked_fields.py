"""What a field may hold stands with the field: a module is checked when it is built, in the order of its fields."""

from __future__ import annotations

import inspect
import pickle
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from fedsolve.core.building import checked, choice, flag, integer, number
from fedsolve.core.errors import InvalidInput
from fedsolve.core.schedules import FromOptax, as_rate
from fedsolve.core.types import module, replace, static


@module
class Rule:
    lr: Any = checked(as_rate, name="client_lr")
    _: KW_ONLY
    mu: Any = number(default=0.1, at_least=0)
    clip: Any = number(default=None, above=0)
    passes: int = integer(default=1)
    kind: str = choice("plain", "fast", "safe", default="plain")
    nesterov: bool = flag(default=False)

    def __post_init__(self) -> None:
        if self.nesterov and self.clip is None:
            raise InvalidInput("nesterov needs clip")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mu": -1}, "mu = -1 must be finite and >= 0"),
        ({"mu": None}, "mu = None must be a number"),
        ({"clip": 0.0}, "clip = 0.0 must be finite and > 0"),
        ({"passes": 0}, "passes = 0 must be an integer of at least 1"),
        ({"passes": 2**31}, "passes = 2147483648 must be below 2^31"),
        ({"kind": "slow"}, "kind = 'slow' must be 'plain', 'fast' or 'safe'"),
        ({"kind": ["plain"]}, "kind = ['plain'] must be 'plain', 'fast' or 'safe'"),
        ({"nesterov": 1}, "nesterov = 1 must be true or false"),
        ({"nesterov": True}, "nesterov needs clip"),
        ({"nesterov": True, "mu": -1}, "mu = -1 must be finite and >= 0"),
        ({"kind": "slow", "mu": -1}, "mu = -1 must be finite and >= 0"),
    ],
)
def test_the_first_fault_in_the_order_of_the_fields_is_told(given, words):
    with pytest.raises(InvalidInput) as error:
        Rule(0.1, **given)
    assert str(error.value) == words


def test_another_name_and_another_value_to_keep():
    with pytest.raises(InvalidInput, match=r"^client_lr = 0 must be finite and > 0$"):
        Rule(0)
    assert isinstance(Rule(lambda round: 0.1).lr, FromOptax)
    assert type(Rule(0.1, passes=np.int64(3)).passes) is int


def test_the_signature_the_leaves_and_copies_are_those_of_plain_fields():
    assert str(inspect.signature(Rule)) == (
        "(lr: 'Any', *, mu: 'Any' = 0.1, clip: 'Any' = None, passes: 'int' = 1, kind: 'str' = 'plain', "
        "nesterov: 'bool' = False) -> None"
    )
    rule = Rule(0.1, clip=1.0)
    assert jax.tree.leaves(rule) == [0.1, 0.1, 1.0]
    assert pickle.loads(pickle.dumps(rule)) == rule
    with pytest.raises(InvalidInput, match=r"^mu = nan"):
        replace(rule, mu=np.nan)
    jax.jit(lambda mu: replace(rule, mu=mu).mu)(-1.0)  # what is traced holds no number yet


@module
class Careful(Rule):
    mu: Any = 0.2  # declared anew: the check stays
    clip: Any = number(default=1.0, above=0, at_most=2)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "fast":
            raise InvalidInput("fast is not careful")


@module
class Fixed(Careful):
    nesterov: ClassVar[bool] = True
    rank: int = static(default=1)


def test_a_subclass_may_narrow_a_field_and_keeps_the_checks_of_the_others():
    for cls in (Careful, Fixed):
        assert (cls(0.1).mu, cls(0.1).clip) == (0.2, 1.0)
        for given, words in [
            ({"mu": -1}, "mu = -1 must be finite and >= 0"),
            ({"clip": 3.0}, "clip = 3.0 must be finite and > 0 and <= 2"),
            ({"clip": None}, "clip = None must be a number"),
            ({"kind": "fast"}, "fast is not careful"),
        ]:
            with pytest.raises(InvalidInput) as error:
                cls(0.1, **given)
            assert str(error.value) == words
    assert Fixed(0.1).nesterov
