"""The repeated blocks of a program of `torch.export`: computed again for the gradient, or compiled once for all.

A block is a child of an `nn.ModuleList` or an `nn.Sequential` that has several of one class, such as the layers of a
decoder or of a ResNet. In the program it is a run of operations, with inputs from outside (its parameters, what the
block before it gives, what all blocks share) and outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import checkpoint_policies
from torch import Tensor
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from fedsolve.pytorch.translation.channels_last import plain

Policy = Callable[..., bool]
POLICIES: dict[str, Policy] = {
    "blocks": checkpoint_policies.nothing_saveable,
    "products": checkpoint_policies.dots_with_no_batch_dims_saveable,
}
"""What a gradient keeps of a block beside its inputs: nothing, or the products with weights."""

Apply = Callable[[Node, Mapping[Node, Any]], Any]
"""(operation, values of nodes) -> its value."""


@dataclass(frozen=True, eq=False)
class Block:
    """A run of operations."""

    nodes: tuple[Node, ...]
    inputs: tuple[Node, ...]  # from outside, by first use
    outputs: tuple[Node, ...]  # which the rest of the program uses

    def evaluate(self, env: dict[Node, Any], apply: Apply, policy: Policy | None) -> None:
        # adds the outputs to `env`. policy: of the gradient, None if everything is kept
        values = {n: plain(env[n]) for n in self.inputs}
        sizes = {n: v for n, v in values.items() if not isinstance(v, jax.Array | np.ndarray)}
        arrays = {n.name: v for n, v in values.items() if n not in sizes}

        def results(given: Mapping[str, Any]) -> list[Any]:
            own = {n: sizes[n] if n in sizes else given[n.name] for n in self.inputs}
            for node in self.nodes:
                own[node] = apply(node, own)
            return [plain(own[n]) for n in self.outputs]

        function = results if policy is None else _checkpoint(results, policy)
        env.update(zip(self.outputs, function(arrays), strict=True))

    def form(self) -> tuple[Any, ...]:
        # equal for blocks that compute the same of their inputs, in order; with the places of the outputs
        name = {n: f"input {i}" for i, n in enumerate(self.inputs)} | {
            n: f"{i}" for i, n in enumerate(self.nodes)
        }
        types = [str(n.meta.get("val")) for n in self.inputs if not _has_tensors(n)]
        own = [
            (str(n.target), str(map_arg((n.args, n.kwargs), name.__getitem__)), _type(n.meta.get("val")))
            for n in self.nodes
        ]
        return own, types, [_type(n.meta.get("val")) for n in self.inputs], [name[n] for n in self.outputs]


HELD: ContextVar[Any] = ContextVar("held", default=None)  # see `compiling_one_block`; None outside of it


@contextmanager
def compiling_one_block(held: Any) -> Iterator[None]:
    """Inside, blocks of one form that follow one another are compiled once, their parameters stacked in a type."""
    # For programs that run once or twice: parameters and their gradients are copied in each call.
    token = HELD.set(held)
    try:
        yield
    finally:
        HELD.reset(token)


@dataclass(frozen=True, eq=False)
class Chain:
    """Blocks of one form, each of which gives its outputs to the next one alone."""

    blocks: tuple[Block, ...]
    carried: Mapping[int, int]  # place among a block's inputs -> among the outputs of the block before it
    own: tuple[int, ...]  # places of the inputs that are other ones in each block, such as parameters

    def evaluate(
        self, env: dict[Node, Any], apply: Apply, policy: Policy | None, names: Mapping[Node, str], held: Any
    ) -> None:
        # names: of parameters and buffers, which are stacked in the type `held`
        first, last = self.blocks[0], self.blocks[-1]
        shared = {
            n: env[n] for i, n in enumerate(first.inputs) if i not in self.carried and i not in self.own
        }

        def stacked(place: int) -> Any:
            nodes = [block.inputs[place] for block in self.blocks]
            values = [jnp.asarray(plain(env[n])) for n in nodes]
            if all(n in names for n in nodes) and jnp.issubdtype(values[0].dtype, jnp.floating):
                values = [v.astype(held) for v in values]
            return jnp.stack(values)

        def step(carry: list[Any], own: list[Any]) -> tuple[list[Any], None]:
            values = dict(shared)
            for place, value in zip(self.carried, carry, strict=True):
                values[first.inputs[place]] = value
            for place, value in zip(self.own, own, strict=True):
                values[first.inputs[place]] = value.astype(plain(env[first.inputs[place]]).dtype)
            first.evaluate(values, apply, None)
            return [jnp.asarray(values[first.outputs[output]]) for output in self.carried.values()], None

        step = jax.checkpoint(step, policy=policy or checkpoint_policies.dots_saveable, prevent_cse=False)
        start = [jnp.asarray(plain(env[first.inputs[place]])) for place in self.carried]
        ends, _ = jax.lax.scan(step, start, [stacked(place) for place in self.own])
        env.update((last.outputs[o], end) for o, end in zip(self.carried.values(), ends, strict=True))


_FEWEST = 3  # blocks of a chain


def chained(steps: Sequence[Node | Block]) -> list[Node | Block | Chain]:
    # the steps, with blocks of one form in one chain where they are one after another
    found: list[Node | Block | Chain] = []
    run: list[Block] = []
    for step in (*steps, None):
        if run and isinstance(step, Block) and _follows(run, step):
            run.append(step)
            continue
        chain = _chain(run) if len(run) >= _FEWEST else None
        found += run if chain is None else [chain]
        run = [step] if isinstance(step, Block) else []
        if isinstance(step, Node):
            found.append(step)
    return found


def _follows(run: Sequence[Block], block: Block) -> bool:
    before = run[-1]
    inside = {*before.nodes, *block.nodes}
    return (
        block.form() == before.form()
        and all(output in block.inputs and inside.issuperset(output.users) for output in before.outputs)
        and (len(run) == 1 or _carried(before, block) == _carried(run[-2], before))
    )


def _carried(before: Block, block: Block) -> dict[int, int]:
    places = {n: i for i, n in enumerate(before.outputs)}
    return {i: places[n] for i, n in enumerate(block.inputs) if n in places}


def _chain(run: Sequence[Block]) -> Chain | None:
    # None if a size is another one in each block
    carried, first = _carried(run[0], run[1]), run[0]
    own = tuple(
        i
        for i, n in enumerate(first.inputs)
        if i not in carried and any(block.inputs[i] is not n for block in run)
    )
    return Chain(tuple(run), carried, own) if all(_has_tensors(first.inputs[i]) for i in own) else None


def _checkpoint(function: Callable[[Any], Any], policy: Policy) -> Callable[[Any], Any]:
    # `jax.checkpoint`, which XLA on a CPU undoes (JAX 0.10.2): it computes all blocks again at once, before the
    # gradient of the last one is there, and holds what was to be saved. In a branch, of which it does not know that
    # it is always taken, a block's recomputation and its gradient are one operation (benchmarks/FINDINGS.md)
    if jax.default_backend() != "cpu":
        return jax.checkpoint(function, policy=policy)

    def in_branch(given: Any) -> Any:
        shapes = jax.eval_shape(function, given)
        nothing = lambda _: jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), shapes)  # noqa: E731
        again = jax.checkpoint(function, policy=policy, prevent_cse=False)
        return jax.lax.cond(jax.lax.optimization_barrier(jnp.bool_(True)), again, nothing, given)

    return in_branch


def steps_of(graph: Graph, operations: Sequence[Node], names: Mapping[Node, str]) -> list[Node | Block]:
    # the operations of a program, in order, with those of a block as one; names: of parameters and buffers
    early = _sizes_of_inputs(graph, operations)
    rest = [n for n in operations if n not in early]
    blocks = {nodes[0]: block for nodes in _runs(rest, names) if (block := _block(nodes, rest)) is not None}
    inside = {n for block in blocks.values() for n in block.nodes}
    return [n for n in operations if n in early] + [
        blocks.get(n, n) for n in rest if n in blocks or n not in inside
    ]


def _sizes_of_inputs(graph: Graph, operations: Iterable[Node]) -> set[Node]:
    # a block that is traced first would have those that all blocks use
    known = {n for n in graph.nodes if n.op == "placeholder"}
    found: set[Node] = set()
    for node in operations:
        if not _has_tensors(node) and all(n in known for n in node.all_input_nodes):
            found.add(node)
            known.add(node)
    return found


def _runs(operations: Iterable[Node], names: Mapping[Node, str]) -> list[list[Node]]:
    # the operations of each block: the largest that are equal, else the smallest that are of one class
    groups: dict[tuple[str, str], dict[tuple[str, str], list[Node]]] = {}
    composed: set[tuple[str, str]] = set()
    for node in operations:
        stack = [
            (path, call, str(kind)) for call, (path, kind) in (node.meta.get("nn_module_stack") or {}).items()
        ]
        for i, (path, call, kind) in enumerate(stack):
            parent, _, last = path.rpartition(".")
            if last.isdigit():
                groups.setdefault((parent, kind), {}).setdefault((path, call), []).append(node)
                if i + 1 < len(stack) or not kind.startswith("torch.nn."):
                    composed.add((path, call))
    several = [own for own in groups.values() if len(own) > 1 and composed.issuperset(own)]
    several.sort(key=lambda own: next(iter(own))[0].count("."))
    equal = [
        max(Counter(_parameters(path, nodes, names) for (path, _), nodes in own.items()).values()) > 1
        for own in several
    ]
    taken: set[Node] = set()
    found: list[list[Node]] = []
    for own in (
        *(own for own, same in zip(several, equal, strict=True) if same),
        *(own for own, same in zip(reversed(several), reversed(equal), strict=True) if not same),
    ):
        nodes = {n for run in own.values() for n in run}
        if taken.isdisjoint(nodes):
            found += own.values()
            taken |= nodes
    return found


def _parameters(path: str, nodes: Iterable[Node], names: Mapping[Node, str]) -> frozenset[Any]:
    # names inside the block, and shapes
    start = path + "."
    return frozenset(
        (names[n].removeprefix(start), _type(n.meta.get("val")))
        for node in nodes
        for n in node.all_input_nodes
        if names.get(n, "").startswith(start)
    )


def _block(nodes: list[Node], operations: list[Node]) -> Block | None:
    # None where others stand between, or sizes come out, which only a number can be
    begin = operations.index(nodes[0])
    if operations[begin : begin + len(nodes)] != nodes:
        return None
    own = set(nodes)
    inputs = dict.fromkeys(n for node in nodes for n in node.all_input_nodes if n not in own)
    outputs = [n for n in nodes if any(user not in own for user in n.users)]
    if not all(map(_has_tensors, outputs)):
        return None
    return Block(tuple(nodes), tuple(inputs), tuple(outputs))


def _has_tensors(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor | tuple | list)


def _type(value: Any) -> Any:
    return (str(tuple(value.shape)), str(value.dtype)) if isinstance(value, Tensor) else None
