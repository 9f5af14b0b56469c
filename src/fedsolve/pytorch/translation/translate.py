"""A program of `torch.export` as a JAX function."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg

from fedsolve.pytorch.operations import OPERATIONS
from fedsolve.pytorch.operations.shapes import fits_a_mask
from fedsolve.pytorch.translation.arrays import as_traced, in_run_dtype, tensor_to_array
from fedsolve.pytorch.translation.blocks import HELD, POLICIES, Block, Chain, chained, steps_of
from fedsolve.pytorch.translation.channels_last import plain, with_channels_last
from fedsolve.pytorch.translation.export import LARGEST, computes_in_64_bits, exceeds_32_bits
from fedsolve.pytorch.translation.registry import NotTranslatable, Operation, where

_NUMBERS = ("add", "sub", "mul", "div", "pow", "rsub", "full", "scalar_tensor", "remainder")
_PYTHON = (operator.add, operator.sub, operator.mul, operator.truediv, operator.neg, operator.pow)


def batch_axes(node: Any) -> dict[int, int]:
    # axis -> how many entries, one after another, stand for one example; an axis of another length that
    # depends on the batch's, such as n - 1, is none
    value = node.meta.get("val") if isinstance(node, Node) else None
    if not isinstance(value, torch.Tensor):
        return {}
    found = {axis: entries_of(size) for axis, size in enumerate(value.shape)}
    return {axis: entries for axis, entries in found.items() if entries}


def entries_of(size: Any) -> int | None:
    # None if the size is no multiple of the batch's length
    if isinstance(size, int):
        return None
    expression = size.node.expr
    symbols = list(expression.free_symbols)
    times = expression / symbols[0] if len(symbols) == 1 else None
    return int(times) if times is not None and times.is_Integer else None


def weights_along(node: Any, mixed: Sequence[int], weights: Array) -> dict[int, Array]:
    # weights of the entries along each axis that is both the batch and among `mixed`, from those (n,) of the examples
    axes = batch_axes(node)
    return {a: weights if k == 1 else jnp.repeat(weights, k) for a, k in axes.items() if a in mixed}


class Counted:
    """Sizes as numbers of examples that count (weight 1, not 0), for where a program computes with them."""

    def __init__(self, weights: Array) -> None:
        self._examples = jnp.maximum(jnp.sum(weights > 0), 1)
        self._known: dict[Node, Any] = {}

    def see(self, node: Node) -> None:
        # sizes of the batch, or made of these by Python
        size = node.meta.get("val")
        if not isinstance(size, torch.SymInt | torch.SymFloat):
            return
        if isinstance(size, torch.SymInt) and (entries := entries_of(size)):
            self._known[node] = self._examples * entries
        elif node.target in _PYTHON and all(n in self._known for n in node.all_input_nodes):
            self._known[node] = node.target(*map_arg(node.args, self._known.__getitem__))  # pyright: ignore
        elif getattr(node.target, "__name__", "") == "sym_float" and node.args[0] in self._known:
            self._known[node] = self._known[node.args[0]]

    def in_place(self, node: Node, args: Sequence[Any]) -> Sequence[Any]:
        # counts in place of sizes
        name = str(node.target).split(".")
        if name[0] != "aten" or name[1] not in _NUMBERS:
            return args
        found = [self._known.get(a) if isinstance(a, Node) else None for a in node.args]
        return [own if count is None else count for own, count in zip(args, found, strict=True)]


def sizes_computed_with(nodes: Iterable[Node]) -> bool:
    # does an arithmetic operation take a size of the batch for a number?
    return any(
        str(node.target).split(".")[0] == "aten"
        and str(node.target).split(".")[1] in _NUMBERS
        and any(
            isinstance(getattr(a, "meta", {}).get("val"), torch.SymInt | torch.SymFloat) for a in node.args
        )
        for node in nodes
        if node.op == "call_function"
    )


_CHECKS = ("aten._assert", "aten.sym_constrain_range")
_SIZES = {"aten.sym_size.int": lambda x, axis: x.shape[axis], "aten.sym_numel.default": lambda x: x.size}


class Program:
    """A program of PyTorch, evaluated operation by operation while JAX traces it.

    Programs are equal only if they are the same object, so that a jitted function meets each once. `dtype`, that of
    the module's parameters, stands for the type of the run wherever it is named. The program reads parameters and
    buffers by `names`, and writes the buffers `written`. `mixing`: padding would count without weights (BatchNorm in
    training); `wide`: it computes in 64 bits what a run in float32 has in 32; `digest` is a short name of what it
    does, the same in every process. `remat`: what a gradient keeps of the repeated `blocks` (`blocks.POLICIES`), None
    for everything. `largest`: of the size of integers among the inputs. `channels_last`: so are pictures between
    convolutions.
    """

    def __init__(
        self,
        exported: torch.export.ExportedProgram,
        dtype: torch.dtype,
        remat: str | None = None,
        largest: float = LARGEST,
        channels_last: bool = False,
    ) -> None:
        self._dtype, self._graph, self._channels_last = dtype, exported.graph, channels_last
        self._constants: dict[str, np.ndarray] = {}
        self._sources: list[tuple[str, str]] = []
        tensors: Mapping[str, Any] = exported.constants
        for spec in exported.graph_signature.input_specs:
            # constants, and buffers that are not saved
            if spec.target is not None and spec.target in tensors:
                self._constants[spec.target] = tensor_to_array(tensors[spec.target])  # pyright: ignore
                self._sources.append(("constant", spec.target))
            else:
                user = spec.kind is InputKind.USER_INPUT
                self._sources.append(("input", "") if user else ("named", str(spec.target)))
        self._places = [n for n in self._graph.nodes if n.op == "placeholder"]
        self._number = {n: number for number, n in enumerate(self._graph.nodes)}
        self._results = [(s.kind, str(s.target)) for s in exported.graph_signature.output_specs]
        self.names = tuple(name for kind, name in self._sources if kind == "named")
        self.written = tuple(name for kind, name in self._results if kind is OutputKind.BUFFER_MUTATION)
        _check_known(self._graph)
        known = [(n, OPERATIONS[name_of(n)]) for n in self._graph.nodes if name_of(n) in OPERATIONS]
        self.random = any(o.draws(n.args, n.kwargs) for n, o in known)
        self.mixing = sizes_computed_with(self._graph.nodes) or any(_mixed(n, o) for n, o in known)
        self.wide = computes_in_64_bits(self._graph, self.inputs, dtype, largest) or any(
            map(exceeds_32_bits, self._constants.values())
        )
        self.digest = self._digest()
        self._policy = POLICIES[remat] if remat else None
        pairs = zip(self._places, self._sources, strict=True)
        self._named = {n: name for n, (kind, name) in pairs if kind == "named"}
        self._operations = [n for n in self._graph.nodes if n.op == "call_function" and not _is_check(n)]
        self._steps = self._operations if remat is None else self._in_blocks
        self.blocks = [step for step in self._steps if isinstance(step, Block)]

    def __call__(
        self,
        values: Mapping[str, Any],
        inputs: Sequence[Any],
        key: Array | None = None,
        weights: Array | None = None,
    ) -> tuple[list[Any], dict[str, Array]]:
        # flat outputs, and the new values of buffers. values: of parameters and buffers by name; key: None in
        # evaluation, which draws by key 0; weights: 0 or 1 for each example, (n,), None where all count
        given = iter(inputs)
        floating = (v.dtype for v in (*values.values(), *inputs) if jnp.issubdtype(v.dtype, jnp.floating))
        run = next(floating, jnp.float32)  # a loss has no values of its own, and computes in its inputs' type
        if key is None and self.random:
            key = jax.random.key(0)
        with in_run_dtype(self._dtype, run):
            counts = None if weights is None or not self.mixing else Counted(weights)
            env: dict[Node, Any] = {}
            for node, (kind, name) in zip(self._places, self._sources, strict=True):
                if kind == "input":
                    env[node] = as_traced(next(given), node.meta.get("val"))
                else:
                    env[node] = self._value(kind, name, values, run)

            def apply(node: Node, env: Mapping[Node, Any]) -> Any:
                args = _filled(node.args, env)
                if counts is not None:
                    counts.see(node)
                    args = counts.in_place(node, args)
                options = _weighted(node, _filled(node.kwargs, env), weights)
                if self._channels_last:
                    value = with_channels_last(name_of(node), args, options)
                    if value is not None:
                        return value
                    args, options = plain((args, options))
                own = (
                    None
                    if key is None or not _is_random(node)
                    else jax.random.fold_in(key, self._number[node])
                )
                return _apply(node, args, options, own)

            held = HELD.get()
            for step in self._steps if held is None else chained(self._in_blocks):
                if isinstance(step, Node):
                    env[step] = apply(step, env)
                elif isinstance(step, Chain):
                    step.evaluate(env, apply, self._policy, self._named, held)
                else:
                    step.evaluate(env, apply, self._policy)
            return self._split(plain(_filled(self._graph.output_node().args[0], env)))

    @cached_property
    def _in_blocks(self) -> Sequence[Node | Block]:
        return steps_of(self._graph, self._operations, self._named)

    def _value(self, kind: str, name: str, values: Mapping[str, Any], run: Any) -> Any:
        if kind == "named":
            return values[name]
        constant = self._constants[name]
        return jnp.asarray(constant.astype(run) if jnp.issubdtype(constant.dtype, jnp.floating) else constant)

    def _split(self, results: Sequence[Any]) -> tuple[list[Any], dict[str, Array]]:
        pairs = list(zip(self._results, results, strict=True))
        written = {name: r for (kind, name), r in pairs if kind is OutputKind.BUFFER_MUTATION}
        return [r for (kind, _), r in pairs if kind is OutputKind.USER_OUTPUT], written

    @property
    def graph(self) -> Graph:
        return self._graph

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def held(self, values: Mapping[str, Any], run: Any) -> dict[Node, Any]:
        # inputs of the graph that are none of the module: named values, and constants in the run's type
        pairs = zip(self._places, self._sources, strict=True)
        return {n: self._value(*source, values, run) for n, source in pairs if source[0] != "input"}

    @property
    def inputs(self) -> list[Node]:
        # inputs of the graph that are the module's
        return [n for n, (kind, _) in zip(self._places, self._sources, strict=True) if kind == "input"]

    def _digest(self) -> str:
        # operations by number: their names depend on how PyTorch traced them
        own = [
            (n.op, name_of(n), map_arg((n.args, n.kwargs), lambda a: f"%{self._number[a]}"))
            for n in self._number
            if not _is_check(n)
        ]
        found = hashlib.blake2b(f"{own}{self._sources}{self._dtype}".encode(), digest_size=8)
        for name, value in sorted(self._constants.items()):
            found.update(f"{name}{value.shape}{value.dtype}".encode() + value.tobytes())
        return found.hexdigest()


def evaluate_node(node: Node, values: Mapping[Node, Any]) -> Any:
    # the value of an operation that draws nothing
    return _apply(node, _filled(node.args, values), _filled(node.kwargs, values), None)


def name_of(node: Node) -> str:
    # `aten.add.Tensor`, or the name of a Python function, which is on sizes
    target: Any = node.target
    return str(target if isinstance(target, torch._ops.OperatorBase) else getattr(target, "__name__", target))


def _apply(node: Node, args: Any, kwargs: Any, key: Array | None) -> Any:
    name = name_of(node)
    if name in _SIZES:
        return _SIZES[name](*args)
    if name not in OPERATIONS:
        return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]  Python's own, on sizes
    known: Operation = OPERATIONS[name]
    if name.startswith("aten.squeeze."):  # a batch of one example keeps its axis
        shape, axes = node.args[0].meta["val"].shape, np.atleast_1d(args[1])  # pyright: ignore
        args = args[0], [int(a) for a in axes if isinstance(shape[int(a)], int)]
    if known.random:
        kwargs = kwargs | {"key": key}
    return known.function(*args, **kwargs)


def _weighted(node: Node, kwargs: Any, weights: Array | None) -> Any:
    # with the weights of the axes that an operation mixes
    known = OPERATIONS.get(name_of(node))
    if weights is None or known is None or not (mixed := _mixed(node, known)):
        return kwargs
    return kwargs | {"weights": weights_along(node.args[0], mixed, weights)}


def _mixed(node: Node, known: Operation) -> tuple[int, ...]:
    # axes of the first argument that are mixed and are the batch
    axes = batch_axes(node.args[0]) if known.mixing is not None and node.args else {}
    if not axes:
        return ()
    ndim = node.args[0].meta["val"].ndim  # pyright: ignore
    return tuple(axis for axis in known.mixed(node.args, node.kwargs, ndim) if axis in axes)


def _is_random(node: Node) -> bool:
    name = name_of(node)
    return name in OPERATIONS and OPERATIONS[name].random


def _filled(arguments: Any, env: Mapping[Node, Any]) -> Any:
    # arguments with the values of nodes in place of nodes
    return map_arg(arguments, lambda node: env[node])


def _is_check(node: Node) -> bool:
    return name_of(node).startswith(_CHECKS)


def _check_known(graph: Graph) -> None:
    # all operations without an equivalent are named, each with the line where it first stands
    missing: dict[str, str] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or _is_check(node):
            continue
        name, at = name_of(node), where(node.meta.get("stack_trace"))
        if free_unbacked_symbols(node.meta.get("val")) or _by_open_mask(node):
            raise NotTranslatable(f"what {name} does{at} depends on the values of tensors: use torch.where")
        if name not in OPERATIONS and name not in _SIZES and not _on_sizes(node):
            missing.setdefault(name, at)
    if missing:
        names = ", ".join(f"{name}{missing[name]}" for name in sorted(missing))
        raise NotTranslatable(f"there is no equivalent in JAX of {names}")


def _by_open_mask(node: Node) -> bool:
    # it writes as many values as a mask holds
    if name_of(node) != "aten.index_put.default":
        return False
    given: Any = map_arg(node.args[:3], lambda n: n.meta["val"])
    x, indices, values = given
    masked = any(i is not None and i.dtype == torch.bool for i in indices)
    return masked and not fits_a_mask(x, indices, values)


def _on_sizes(node: Node) -> bool:
    # a Python function: an item of a tuple, or arithmetic of sizes
    home = getattr(node.target, "__module__", "") or ""
    return not isinstance(node.target, torch._ops.OperatorBase) and home in ("_operator", "math", "torch")
