"""Programs that JAX has traced, and those inside them: the bodies of loops, the branches, what is called."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

Program = ClosedJaxpr | Jaxpr


def equations_of(program: Any) -> list[JaxprEqn]:
    """The operations of a program, without those of programs inside."""
    return (program.jaxpr if isinstance(program, ClosedJaxpr) else program).eqns


def programs_inside(equation: JaxprEqn) -> Iterator[Program]:
    """The programs of an operation: of a loop, a branch, a call."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if isinstance(one, ClosedJaxpr | Jaxpr):
                yield one


def all_programs(program: Program) -> Iterator[Program]:
    """A program and all that are inside it."""
    yield program
    for equation in equations_of(program):
        for inside in programs_inside(equation):
            yield from all_programs(inside)


def all_equations(program: Program) -> Iterator[JaxprEqn]:
    """The operations of a program and of all that are inside it."""
    for part in all_programs(program):
        yield from equations_of(part)
