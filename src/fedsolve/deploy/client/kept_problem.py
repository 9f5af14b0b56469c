"""A client's problem, kept from message to message in a process that answers several."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.data.schema import schemas_used
from fedsolve.deploy.client.node_context import NodeContext, states_of
from fedsolve.deploy.messages.signature import constant_digests, other_constant
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.deploy.site_names import numbered
from fedsolve.deploy.threads import share_threads
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import MALFORMED, loads, read_bytes

_LARGEST = 2**20  # bytes of a file of digests


class KeptProblem:
    """The problem of the last message, for the next one of the same node in the same run.

    A new one is made for another run, whose data may have changed, for another configuration, where one is asked for,
    and after an exception, which may have left anything behind. Only one is kept, since it holds a client's examples.

    Raises:
        InvalidInput: it is no function.
    """

    def __init__(self, oracle_for: Callable[[NodeContext], LocalProblem]) -> None:
        if not callable(oracle_for):
            raise InvalidInput(f"oracle_for must be a function of the node, not {oracle_for!r}")
        self._oracle_for, self._lock = oracle_for, Lock()
        self._made_for, self._problem = "", None

    @contextmanager
    def during(self, run: int, node: NodeContext, anew: bool = False) -> Iterator[LocalProblem]:
        """The problem as its construction left it, for one message at a time; with `anew` its data are read again.

        Raises:
            InvalidInput: the owner's function gave something else, or a problem with other constants than when the
                node connected to this run, which the server has compared with those of all clients.
        """
        configs = (sorted(config.items()) for config in (node.node_config, node.run_config))
        wanted = repr((run, node.client, node.site, *configs))  # 1, 1.0 and True differ
        with self._lock:
            try:
                if anew or self._problem is None or self._made_for != wanted:
                    self._problem = None  # its examples leave memory before others are read
                    problem = _make(self._oracle_for, node)
                    _compare_constants(problem, run, node, connects=anew)
                    self._problem, self._made_for = problem, wanted
                with self._problem.restored():
                    yield self._problem
            except BaseException:
                self._problem = None
                raise


def _make(oracle_for: Callable[[NodeContext], LocalProblem], node: NodeContext) -> LocalProblem:
    share_threads()  # before the owner's code, which may set another number
    with schemas_used() as used:
        problem = oracle_for(node)
    if not isinstance(problem, LocalProblem):
        raise InvalidInput(
            f"oracle_for gave {type(problem).__name__} for {node.site or numbered(node.client)}: "
            "give a TorchOracle, a JaxOracle or a SklearnOracle"
        )
    if used:  # else it may have been made before
        named = {name: np.array(value) for schema in used for name, value in schema.parts.items()}
        problem.schemas = {f"schema.toml, {name}": value for name, value in named.items()}
    return problem


def _compare_constants(problem: LocalProblem, run: int, node: NodeContext, connects: bool) -> None:
    """Keep digests of a problem's constants when its node connects; afterwards raise `InvalidInput` if one differs."""
    path = states_of(node.node_config) / f"client-{node.client}-constants.json"
    digests = constant_digests(problem.shared)
    if connects:
        if digests or path.exists():
            # methods whose clients keep nothing do without a folder that can be written
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, json.dumps({"run": str(run), "constants": digests}))
        return
    try:
        kept = loads(read_bytes(path, _LARGEST, follow=False))
        known = dict(pair.rsplit(" ", 1) for pair in kept["constants"]) if kept["run"] == str(run) else {}
    except (OSError, *MALFORMED):
        return  # it has connected elsewhere, or the folder was emptied: the server has compared what it was told then
    if (name := other_constant(digests, known)) is not None:
        raise InvalidInput(
            f"'{name}' of {node.site or numbered(node.client)} has changed since its node connected to this run: put "
            "it back, or start the node again, so that it is compared with the other clients'"
        )
