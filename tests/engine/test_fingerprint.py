"""Digests of arrays and functions: the same in every process and wherever the code stands; another for other work."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedsolve.engine.identity import arrays_digest, code_digest, function_name

LOSS = """
import functools, enum
from dataclasses import dataclass
import jax, jax.numpy as jnp, numpy as np
SCALE = 2.0
NAMES = {"a", "b", "c"}
TABLE = np.arange(3.0)
def helper(x):
    return x * SCALE
@dataclass(frozen=True)
class Penalty:
    weight: float
    def __call__(self, params):
        return self.weight * params.sum()
penalty = Penalty(0.5)
@jax.jit
def compiled(x):
    return x + 1
def make(shift):
    def loss(params, batch, power=2):
        kinds = {"u", "v", "w"}
        fit = (jnp.where("a" in NAMES, helper(params), 0) - batch + shift).sum() ** power
        return fit + penalty(params) + compiled(TABLE.sum())
    return loss
loss = make(np.ones(3))
"""


def defined(source):
    module = types.ModuleType("users_own")
    sys.modules["users_own"] = module
    exec(compile(source, "users_own.py", "exec"), vars(module))
    return module.loss


@pytest.mark.full
def test_other_lines_and_other_processes_are_the_same_function():
    """Moved by blank lines and comments, and in a process with another hash seed: one digest."""
    known = {code_digest(defined(LOSS)), code_digest(defined("# a comment\n\n\n" + LOSS))}
    code = textwrap.dedent(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        from engine.test_fingerprint import LOSS, code_digest, defined
        print(code_digest(defined(LOSS)))
        """
    )
    tests = os.path.dirname(os.path.dirname(__file__))
    env = os.environ | {"PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code, tests]
    known.add(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip())
    assert len(known) == 1


EDITS = [
    ("** power", "** (power + 1)"),
    ("power=2", "power=3"),
    ('{"u", "v", "w"}', '{"u", "v", "x"}'),
    ("np.ones(3)", "np.zeros(3)"),
    ("jnp.where", "jnp.maximum"),
]


@pytest.mark.parametrize(("old", "new"), EDITS, ids=[e[0] for e in EDITS])
def test_an_edit_is_another_function(old, new):
    """Of the function, its default, a constant of it, a closure."""
    assert LOSS.count(old) == 1
    assert code_digest(defined(LOSS)) != code_digest(defined(LOSS.replace(old, new)))


UNSEEN = [("x * SCALE", "x / SCALE"), ("SCALE = 2.0", "SCALE = 2.5"), ("return x + 1", "return x + 2")]


@pytest.mark.parametrize(("old", "new"), UNSEEN, ids=[e[0] for e in UNSEEN])
def test_what_a_function_uses_is_no_part_of_it(old, new):
    """A helper, a global constant, a compiled function."""
    assert code_digest(defined(LOSS)) == code_digest(defined(LOSS.replace(old, new)))


OBJECT = """
class Loss:
    def __init__(self, weight):
        self.weight = weight
    def __call__(self, params, batch):
        return self.weight * params.sum()
loss = Loss(0.5)
"""


@pytest.mark.parametrize(("old", "new"), [("Loss(0.5)", "Loss(0.6)"), ("params.sum()", "params.max()")])
def test_an_object_that_is_called_is_its_values_and_its_code(old, new):
    assert code_digest(defined(OBJECT)) == code_digest(defined(OBJECT))
    assert code_digest(defined(OBJECT)) != code_digest(defined(OBJECT.replace(old, new)))


def test_own_classes_and_functions_are_known_without_their_module():
    """Moved within the package, or with other code inside: the same; with other values: another."""

    def made(module, source="return x + shift", shift=1):
        text = f"def make(shift):\n    def f(x):\n        {source}\n    return f\nclass Own:\n    pass\n"
        names = {"__name__": module}
        exec(text, names)
        return names["make"](shift), names["Own"]()

    first = made("fedsolve.here")
    for part in (0, 1):
        assert function_name(first[part]) == function_name(
            made("fedsolve.there.now", "return x - shift")[part]
        )
        assert function_name(first[part]) != function_name(made("mine")[part])
    assert function_name(first[0]).startswith("fedsolve.make.<locals>.f#")
    assert code_digest(first[0]) != code_digest(made("fedsolve.here", shift=2)[0])


def test_partial_methods_and_names():
    def f(a, b):
        return a + b

    assert code_digest(functools.partial(f, 1)) == code_digest(functools.partial(f, 1))
    assert code_digest(functools.partial(f, 1)) != code_digest(functools.partial(f, 2))
    assert function_name(functools.partial(f, 1)).startswith(
        f"{__name__}.test_partial_methods_and_names.<locals>.f#"
    )
    assert function_name(jnp.sum).partition("#")[0].endswith(".sum")


class Odd:
    def __getattr__(self, name):
        raise OSError(name)


def recursive(n):
    return recursive(n - 1) if n else object()


def test_odd_things_end():
    """Recursion, cycles, enough of everything: a digest without an address in it."""

    def things():
        loop: dict = {"odd": Odd()}
        loop["self"] = types.SimpleNamespace(loop=loop, lock=object(), rng=np.random.default_rng(0))
        return (recursive, loop["self"], jax.random.key(0), np.float32, [1, {2: {3}}], os.path, open, len)

    assert code_digest(*things()) == code_digest(*things())


ARRAYS = {"x": np.arange(6.0).reshape(2, 3), "y": np.array([1, 2])}


@pytest.mark.parametrize(
    "other",
    [
        {"x": ARRAYS["x"].reshape(3, 2), "y": ARRAYS["y"]},
        {"x": ARRAYS["x"] + np.eye(2, 3) * 1e-16 * 0, "z": ARRAYS["y"]},
        {"x": ARRAYS["x"], "y": ARRAYS["y"].astype(np.int32)},
        {"x": ARRAYS["x"], "y": ARRAYS["y"][::-1]},
        {"x": np.nextafter(ARRAYS["x"], 9.0), "y": ARRAYS["y"]},
        None,
    ],
)
def test_other_arrays(other):
    """Another shape, name, type, order, last bit."""
    assert arrays_digest(ARRAYS) != arrays_digest(other)
    assert arrays_digest(ARRAYS) == arrays_digest({k: np.asfortranarray(v) for k, v in ARRAYS.items()})
