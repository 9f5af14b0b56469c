"""Exported programs of PyTorch in Core ATen operations, each form of an operation decomposed once."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard
from unittest import mock

import torch
import torch._export.utils
import torch.export._trace
import torch.utils._pytree as pytree
from torch import Tensor
from torch._decomp import get_decompositions
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.export import ExportedProgram, exported_program
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg

# these have no good decomposition: kept whole, they keep their speed or their exact form, take our random key,
# or (detach) the gradient that they stop
KEPT = frozenset(
    """
    dropout alpha_dropout feature_dropout feature_alpha_dropout native_dropout
    layer_norm group_norm native_layer_norm native_group_norm
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    scaled_dot_product_attention lstm gru rnn_tanh rnn_relu detach
    hardsigmoid hardswish multilabel_margin_loss multi_margin_loss sinc std std_mean
    """.split()  # noqa: SIM905
)


def in_core_aten(program: ExportedProgram) -> ExportedProgram:
    # `run_decompositions` runs every operation twice on sizes that are symbols: 2.6 s of a transformer of 12 blocks.
    # Decomposing an operation once for all that are alike gives the same program in 0.1 s
    _keep_stopped(program)
    try:
        graph = _Decomposition(program.graph).result
    except Exception:  # `_NotFunctional`; or another version of PyTorch has other names for its own parts
        return program.run_decompositions(_table())
    program.graph_module.graph = graph
    return program


@contextlib.contextmanager
def registered_once() -> Iterator[None]:
    # PyTorch (2.13) lists its composite operations 50 times for a program, a fifth of the time, and registers some 900
    # decompositions of its own again and again, a third of it, to do what it does anyway
    listing, registering = "_materialize_cpp_cia_ops", "_override_composite_implicit_decomp"
    getattr(torch._export.utils, listing, lambda: None)()
    register = getattr(exported_program, registering, None)

    def other_than_its_own(rules: dict[Any, Any]) -> Any:
        return register and register({op: rule for op, rule in rules.items() if not _is_its_own(rule)})

    with (
        mock.patch.object(torch._export.utils, listing, return_value=None, create=True),
        mock.patch.object(exported_program, registering, other_than_its_own, create=True),
    ):
        yield


def _is_its_own(rule: Any) -> bool:
    return getattr(getattr(rule, "func", None), "__name__", "") == "_special_op_to_decompose_cia"


def _keep_stopped(program: ExportedProgram) -> None:
    # decompositions would forget `torch.no_grad()`: its results become detached
    graph = program.graph
    for node in list(graph.nodes):
        if node.op != "call_function" or "wrap_with_set_grad_enabled" not in str(node.target) or node.args[0]:
            continue
        for result in list(node.users):
            if isinstance(result.meta.get("val"), torch.Tensor):
                with graph.inserting_after(result):
                    stopped = graph.call_function(torch.ops.aten.detach.default, (result,))
                stopped.meta = dict(result.meta)
                result.replace_all_uses_with(stopped, lambda user, own=stopped: user is not own)
    program.graph_module.recompile()


def _table() -> dict[Any, Any]:
    table = torch.export.default_decompositions()
    table.update(get_decompositions([torch.ops.aten.grid_sampler_2d]))
    for overload in list(table):
        if str(overload).split(".")[1] in KEPT:
            table.pop(overload)
    return table


class _NotFunctional(Exception):
    """An operation writes to tensors or has programs for arguments, so that the whole program is decomposed."""


class _Decomposition:
    """A graph whose operations are replaced by Core ATen ones; sizes are computed once, from inputs."""

    def __init__(self, graph: Graph) -> None:
        self.result = Graph()
        self._parts: dict[Any, Graph] = {}  # decomposed operations by their `_form`
        self._sizes: dict[Any, Node] = {}  # by expression
        composite, self._rules = _rules()
        _check_functional(graph)
        nodes = list(graph.nodes)
        places = [n for n in nodes if n.op == "placeholder"]
        env: dict[Node, Any] = {n: self.result.node_copy(n) for n in places}
        self._add_sizes(nodes, env)
        fake = next(v.fake_mode for n in nodes if isinstance(v := n.meta.get("val"), FakeTensor))
        with (
            fake,
            enable_python_dispatcher(),  # without it sizes become numbers
            exported_program._override_composite_implicit_decomp(composite),
            torch.export._trace._ignore_backend_decomps(),
            torch.no_grad(),
        ):
            for node in nodes[len(places) :]:
                env[node] = self._added(node, env)
        self.result.eliminate_dead_code()

    def _add_sizes(self, nodes: Sequence[Node], env: Mapping[Node, Any]) -> None:
        # of inputs that the program asks for a size, or of the last ones that have it
        found: dict[Any, tuple[Any, int, Any]] = {}
        for node in nodes:
            value = node.meta.get("val")
            if node.op == "placeholder" and isinstance(value, Tensor):
                sizes = enumerate(value.shape)
                found.update({s.node.expr: (node, axis, s) for axis, s in sizes if _is_symbol(s)})
            elif node.target is torch.ops.aten.sym_size.int and node.args[0] in env and _is_symbol(value):
                found[value.node.expr] = *node.args, value  # pyright: ignore
        for expression, (node, axis, size) in found.items():
            added = self.result.call_function(torch.ops.aten.sym_size.int, (env[node], axis))
            added.meta["val"], self._sizes[expression] = size, added

    def _added(self, node: Node, env: dict[Node, Any]) -> Any:
        if node.target is operator.getitem and isinstance(env[node.args[0]], list | tuple):  # pyright: ignore
            return env[node.args[0]][node.args[1]]  # pyright: ignore
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or not (
            target in self._rules or target.has_kernel_for_dispatch_key(_COMPOSITE)
        ):
            return self._copied(node, env)
        form = _form(node)
        if form not in self._parts:
            self._parts[form] = _traced(node, self._rules)
            _check_functional(self._parts[form])
        *inner, output = self._parts[form].nodes
        places = (n for n in inner if n.op == "placeholder")
        own = dict(zip(places, (env[n] for n in _leaves(node) if isinstance(n, Node)), strict=True))
        for part in inner:
            if part.op != "placeholder":
                own[part] = self._copied(part, own)
                own[part].meta.update({k: node.meta[k] for k in _PLACES & node.meta.keys()})
        return map_arg(output.args[0], own.__getitem__)

    def _copied(self, node: Node, env: Mapping[Node, Any]) -> Node:
        copied = self.result.node_copy(node, env.__getitem__)
        size = getattr(node.meta.get("val"), "node", None)  # of a symbolic number
        return copied if size is None else self._sizes.setdefault(size.expr, copied)


_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_PLACES = {"stack_trace", "nn_module_stack"}  # where the user's code calls an operation
_WRITING_IN_TRAINING = "batch_norm", "instance_norm"  # running statistics, which their schemas do not say


def _check_functional(graph: Graph) -> None:
    for node in graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.OpOverload):
            writes = target._schema.is_mutable or (
                target._opname in _WRITING_IN_TRAINING and node.args[3] is not None and node.args[5]
            )
            if writes or free_unbacked_symbols(node.meta.get("val")):
                raise _NotFunctional
        elif isinstance(target, torch._ops.OperatorBase) or node.op in ("get_attr", "call_module"):
            raise _NotFunctional


@functools.cache
def _rules() -> tuple[dict[Any, Any], dict[Any, Any]]:
    # what becomes of composite operations, and of others
    return exported_program._split_decomp_table_to_cia_and_python_decomp(_table())  # pyright: ignore


def _is_symbol(size: Any) -> TypeGuard[torch.SymInt]:
    return isinstance(size, torch.SymInt) and size.node.expr.is_symbol


def _leaves(node: Node) -> list[Any]:
    return pytree.tree_leaves((node.args, node.kwargs))


def _form(node: Node) -> Any:
    # all that an operation's decomposition depends on
    def described(leaf: Any) -> Any:
        value = leaf.meta.get("val") if isinstance(leaf, Node) else leaf
        if not isinstance(value, Tensor):
            return type(leaf), repr(value)
        sizes = *value.shape, *value.stride(), value.storage_offset()
        return value.dtype, value.requires_grad, tuple(map(str, sizes))

    _, structure = pytree.tree_flatten((node.args, node.kwargs))
    return node.target, str(structure), tuple(map(described, _leaves(node)))


def _traced(node: Node, rules: Mapping[Any, Any]) -> Graph:
    leaves, structure = pytree.tree_flatten((node.args, node.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Node)]

    def run(*values: Any) -> Any:
        given = dict(zip(places, values, strict=True))
        args, kwargs = pytree.tree_unflatten([given.get(i, leaf) for i, leaf in enumerate(leaves)], structure)
        return node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]

    functional = dispatch_functionalize(run, FunctionalTensorMode())
    return make_fx(functional, decomposition_table=rules)(*(leaves[i].meta["val"] for i in places)).graph
