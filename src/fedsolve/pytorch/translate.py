"""A program of `torch.export` as a JAX function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jaxtyping import Array
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from fedsolve.errors import InvalidInput
from fedsolve.pytorch.dtypes import array_of, computing
from fedsolve.pytorch.operations import OPERATIONS

_CHECKS = ("aten._assert", "aten.sym_constrain_range")
_SIZES = {"aten.sym_size.int": lambda x, axis: x.shape[axis], "aten.sym_numel.default": lambda x: x.size}
_GRADIENT_OFF = "wrap_with_set_grad_enabled"


class Program:
    """A program of PyTorch, evaluated operation by operation while JAX traces it.

    Programs are equal only if they are the same object, so that a jitted function meets each once.

    Attributes:
        names: the parameters and buffers that it reads, as the module calls them.
        written: the buffers that it writes.

    Raises:
        InvalidInput: operations that have no equivalent here; all are named.
    """

    def __init__(self, exported: torch.export.ExportedProgram, dtype: torch.dtype) -> None:
        self._dtype, self._graph = dtype, exported.graph
        self._constants: dict[str, np.ndarray] = {}
        self._sources: list[tuple[str, str | None]] = []
        tensors: Mapping[str, Any] = exported.constants
        for spec in exported.graph_signature.input_specs:
            name, target = getattr(spec.arg, "name", ""), spec.target
            if target is not None and target in tensors:  # lifted constants, buffers that are not saved
                self._constants[target] = array_of(tensors[target])
                self._sources.append(("constant", target))
            elif spec.kind is InputKind.USER_INPUT:
                self._sources.append(("input", name))
            else:
                self._sources.append(("named", target))
        self.names = tuple(str(target) for kind, target in self._sources if kind == "named")
        self._results = [(s.kind, s.target) for s in exported.graph_signature.output_specs]
        self.written = tuple(str(t) for kind, t in self._results if kind is OutputKind.BUFFER_MUTATION)
        self._subgraphs = {
            n: m.graph for n, m in exported.graph_module.named_children() if isinstance(m, GraphModule)
        }
        _check_known([self._graph, *self._subgraphs.values()])

    def __call__(
        self, values: Mapping[str, Array], inputs: Sequence[Any], key: Array | None = None
    ) -> tuple[list[Any], dict[str, Array]]:
        """Its outputs, flat, and the new values of the buffers that it writes.

        Args:
            values: of the parameters and buffers by name.
            inputs: arrays, the flat inputs of the module.
            key: a key for what is random in it; None in evaluation.
        """
        given = iter(inputs)
        run = next((v.dtype for v in values.values() if jnp.issubdtype(v.dtype, jnp.floating)), jnp.float32)
        with computing(self._dtype, run):
            arguments = [self._argument(kind, name, values, given, run) for kind, name in self._sources]
            results = self._run(self._graph, arguments, key)
        written = {
            str(t): r for (kind, t), r in zip(self._results, results, strict=True)
            if kind is OutputKind.BUFFER_MUTATION
        }  # fmt: skip
        outputs = [
            r for (kind, _), r in zip(self._results, results, strict=True) if kind is OutputKind.USER_OUTPUT
        ]
        return outputs, written

    def _argument(self, kind: str, name: Any, values: Mapping[str, Array], given: Any, run: Any) -> Any:
        if kind == "input":
            return next(given)
        if kind == "named":
            return values[name]
        constant = self._constants[name]
        floating = jnp.issubdtype(constant.dtype, jnp.floating)
        return jnp.asarray(constant.astype(run) if floating else constant)

    def _run(self, graph: Graph, arguments: Sequence[Any], key: Array | None) -> list[Any]:
        env: dict[Node, Any] = {}
        given = iter(arguments)
        for number, node in enumerate(graph.nodes):
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "get_attr":
                env[node] = self._subgraphs[str(node.target)]
            elif node.op == "output":
                return list(_filled(node.args[0], env))
            elif not _is_check(node):
                own = None if key is None else jax.random.fold_in(key, number)
                env[node] = self._apply(node, _filled(node.args, env), _filled(node.kwargs, env), own)
        raise AssertionError("a graph without an output")

    def _apply(self, node: Node, args: Any, kwargs: Any, key: Array | None) -> Any:
        name = name_of(node)
        if name in OPERATIONS:
            known = OPERATIONS[name]
            return (
                known.function(*args, **kwargs, key=key) if known.random else known.function(*args, **kwargs)
            )
        if name in _SIZES:
            return _SIZES[name](*args)
        if name == _GRADIENT_OFF:
            enabled, graph, *rest = args
            stop = (lambda x: x) if enabled else jax.lax.stop_gradient
            return [stop(x) for x in self._run(graph, rest, key)]
        return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]  Python's own, on sizes


def name_of(node: Node) -> str:
    """The name of a node's operation: `aten.add.Tensor`, or of a function of Python's, which is on sizes."""
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    return str(getattr(target, "__name__", target))


def _filled(arguments: Any, env: Mapping[Node, Any]) -> Any:
    """Arguments with the values of nodes in place of nodes."""
    return map_arg(arguments, lambda node: env[node])


def _is_check(node: Node) -> bool:
    return name_of(node).startswith(_CHECKS)


def _check_known(graphs: Sequence[Graph]) -> None:
    """Raise `InvalidInput` that names all operations without an equivalent."""
    missing = {
        name_of(node)
        for graph in graphs
        for node in graph.nodes
        if node.op == "call_function"
        and not _is_check(node)
        and name_of(node) not in {*OPERATIONS, *_SIZES, _GRADIENT_OFF}
        and not _on_sizes(node)
    }
    if missing:
        raise InvalidInput(
            f"no JAX equivalent of {', '.join(sorted(missing))}: pass translate=False to run the module in PyTorch"
        )


def _on_sizes(node: Node) -> bool:
    """Whether a node is a function of Python's: a getitem, or arithmetic of sizes."""
    home = getattr(node.target, "__module__", "") or ""
    return not isinstance(node.target, torch._ops.OperatorBase) and home in ("_operator", "math", "torch")
