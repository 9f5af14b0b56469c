"""Every operation against PyTorch's own: values, gradients, types and shapes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import samples  # noqa: E402

from fedsolve.pytorch.operations import OPERATIONS  # noqa: E402
from fedsolve.pytorch.translation.arrays import jax_dtype, tensor_to_array  # noqa: E402

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


def test_every_operation_has_a_sample() -> None:
    drawn = {name for family in samples.FAMILIES for name in family(samples.Draw(torch.float32))}
    random = {name for name, known in OPERATIONS.items() if known.random}
    assert len(OPERATIONS) >= 120
    assert set(OPERATIONS) == drawn | set(samples.SHAPE_ALONE) | random


def test_page_lists_them() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pytorch-operations.md").read_text()
    listed = set()
    for entry in re.findall(r"`([^`\s]+)`", page.rstrip().rpartition("\n\n")[2]):
        operation, _, overloads = entry.partition(".")
        listed |= {f"aten.{operation}.{one}" for one in (overloads or "default").split("|")}
    assert listed == set(OPERATIONS), "run: make generate"


@pytest.mark.parametrize("family", samples.FAMILIES, ids=lambda f: f.__name__)
def test_values_and_gradients(family: Callable[..., Any]) -> None:
    compare(family, torch.float64)


@pytest.mark.full
@pytest.mark.parametrize("family", samples.FAMILIES, ids=lambda f: f.__name__)
def test_values_and_gradients_in_float32(family: Callable[..., Any]) -> None:
    compare(family, torch.float32)


@pytest.mark.full_rows("arithmetic", "activations", "reductions", "pooling")
@pytest.mark.parametrize("family", samples.FAMILIES, ids=lambda f: f.__name__)
def test_types_in_float32(family: Callable[..., Any]) -> None:
    """A float64 creeping in shows in the type, without computing anything."""
    with jax.enable_x64(True):
        for name, calls in family(samples.Draw(torch.float32)).items():
            for call in calls:
                expected = _flat(_reference(name, call)(*call.args, **call.kwargs))
                run, tensors = _ours(name, call)
                shapes = jax.eval_shape(run, [tensor_to_array(t) for t in tensors])
                assert [s.dtype for s in shapes][: len(expected)] == [jax_dtype(e.dtype) for e in expected][
                    : len(shapes)
                ], (
                    name,
                    call,
                )


def test_shapes_of_what_is_undefined() -> None:
    for name, calls in samples.SHAPE_ALONE.items():
        for call in calls:
            expected = _overload(name)(*call.args, **call.kwargs)
            got = OPERATIONS[name].function(*call.args, **call.kwargs)
            assert got.shape == tuple(expected.shape)
            assert got.dtype == jax_dtype(expected.dtype)


def compare(family: Callable[..., Any], dtype: torch.dtype) -> None:
    """All calls of a family in one compiled program."""
    with jax.enable_x64(True):
        names, programs, inputs, expected = [], [], [], []
        for name, calls in family(samples.Draw(dtype)).items():
            for number, call in enumerate(calls):
                run, tensors = _ours(name, call)
                values, cotangents, gradients = _theirs(name, call)
                arrays = [tensor_to_array(t) for t in tensors]
                programs.append(_with_gradients(run))
                inputs.append(
                    (arrays, [None if c is None else tensor_to_array(c).conj() for c in cotangents])
                )
                expected.append((values, gradients))
                names.append(f"{name} call {number}")
        results = jax.jit(lambda given: [p(*g) for p, g in zip(programs, given, strict=True)])(inputs)
        for name, (values, gradients), (got, got_gradients) in zip(names, expected, results, strict=True):
            for theirs, ours in zip(values, got, strict=True):
                assert ours.dtype == jax_dtype(theirs.dtype), f"{name}: {ours.dtype}, not {theirs.dtype}"
                _close(ours, theirs, dtype, name)
            for theirs, ours in zip(gradients, got_gradients if gradients else (), strict=True):
                # JAX and PyTorch disagree on which of two conjugates is the gradient by a complex number
                _close(ours, theirs.conj(), dtype, f"gradient of {name}")


def _close(ours: Any, theirs: torch.Tensor, dtype: torch.dtype, name: str) -> None:
    assert ours.shape == tuple(theirs.shape), name
    inexact = theirs.is_floating_point() or theirs.is_complex()
    limit = max(TOLERANCE[dtype], TOLERANCE[theirs.dtype.to_real()]) if inexact else 0
    np.testing.assert_allclose(
        np.asarray(ours), tensor_to_array(theirs), rtol=limit, atol=limit, err_msg=name
    )


def _overload(name: str) -> Any:
    _, packet, overload = name.split(".")
    return getattr(getattr(torch.ops.aten, packet), overload)


def _reference(name: str, call: samples.Call) -> Callable[..., Any]:
    return call.reference or _overload(name)


def _ours(name: str, call: samples.Call) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """The operation as a function of its tensors alone, and these."""
    leaves, form = jax.tree.flatten((call.args, call.kwargs), is_leaf=lambda v: v is None)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    known = OPERATIONS[name]
    extra = {"key": jax.random.key(0)} if known.random else {}

    def run(arrays: list[Any]) -> list[Any]:
        filled = list(leaves)
        for i, array in zip(at, arrays, strict=True):
            filled[i] = jnp.asarray(array)
        args, kwargs = jax.tree.unflatten(form, filled)
        result = known.function(*args, **kwargs, **extra)
        return [result] if isinstance(result, jax.Array) else [result[i] for i in range(len(result))]

    return run, [leaves[i] for i in at]


def _theirs(name: str, call: samples.Call) -> tuple[list[Any], list[Any], list[Any]]:
    """PyTorch's results, a cotangent for each that is differentiable, and the gradients of the floating inputs."""
    leaves, form = jax.tree.flatten((call.args, call.kwargs), is_leaf=lambda v: v is None)
    copies = [
        v.clone().requires_grad_((v.is_floating_point() or v.is_complex()) and call.gradient)
        if isinstance(v, torch.Tensor)
        else v
        for v in leaves
    ]
    args, kwargs = jax.tree.unflatten(form, copies)
    results = _flat(_reference(name, call)(*args, **kwargs))
    generator = torch.Generator().manual_seed(1)
    cotangents = [
        torch.randn(
            r.shape, generator=generator, dtype=torch.complex128 if r.is_complex() else torch.float64
        ).to(r.dtype)
        if r.requires_grad
        else None
        for r in results
    ]
    wanted = [c for c in copies if isinstance(c, torch.Tensor) and c.requires_grad]
    pairs = [(r, c) for r, c in zip(results, cotangents, strict=True) if c is not None]
    zeros = [torch.zeros_like(w) for w in wanted]
    if pairs:
        found = torch.autograd.grad([r for r, _ in pairs], wanted, [c for _, c in pairs], allow_unused=True)
        zeros = [z if g is None else g for z, g in zip(zeros, found, strict=True)]
    return [r.detach().resolve_conj() for r in results], cotangents, zeros


def _with_gradients(run: Callable[..., Any]) -> Callable[..., Any]:
    def both(arrays: list[Any], cotangents: list[Any]) -> tuple[list[Any], list[Any]]:
        at = [i for i, a in enumerate(arrays) if jnp.issubdtype(a.dtype, jnp.inexact)]

        def of_floating(floats: list[Any]) -> Any:
            filled = list(arrays)
            for i, value in zip(at, floats, strict=True):
                filled[i] = value
            results = run(filled)[: len(cotangents)]
            return [r for r, c in zip(results, cotangents, strict=True) if c is not None], results

        _, pull, results = jax.vjp(of_floating, [arrays[i] for i in at], has_aux=True)
        return results, pull([c for c in cotangents if c is not None])[0]

    return both


def _flat(result: Any) -> list[Any]:
    return [result] if isinstance(result, torch.Tensor) else list(result)
