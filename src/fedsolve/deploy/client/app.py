"""The client's app on Flower: one handler for every method; its problem is kept from message to message."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsolve.core.errors import FedsolveError, InvalidInput, check_integer
from fedsolve.data.schema import schemas_used
from fedsolve.deploy import codec
from fedsolve.deploy.analysis_job import ACTION as ROWS
from fedsolve.deploy.analysis_job import reply_to_question
from fedsolve.deploy.client.secure_sums import SecureSums
from fedsolve.deploy.client.state import PrivacyBudget
from fedsolve.deploy.client.worker import Worker
from fedsolve.deploy.codec import AnyRequest, record_to_request, to_record
from fedsolve.deploy.column_records import ACTION
from fedsolve.deploy.host import share_threads
from fedsolve.deploy.message import EVALUATE, PROTOCOL, TRAIN, EvaluateRequest, Reply, TrainRequest
from fedsolve.deploy.method_spec import trusted_parts
from fedsolve.deploy.oracles.node_oracle import LocalProblem, NodeContext, states_of
from fedsolve.deploy.oracles.trained import TrainedClient
from fedsolve.deploy.sanitize import about_request, sanitize
from fedsolve.deploy.server.settings import named_arguments
from fedsolve.deploy.signature import constant_digests, other_constant, signature
from fedsolve.deploy.site_names import numbered, site_of
from fedsolve.deploy.statistics_job import AllowedColumns
from fedsolve.deploy.status import RECORD as VERSIONS
from fedsolve.deploy.status import own_versions
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import MALFORMED, loads, read_bytes

_LARGEST = 2**20  # bytes of a file of digests


class OracleCache:
    """The problem of the last message, for the next one of the same node in the same run."""

    # A new one is made for another run, whose data may have changed, for another configuration, where one is asked
    # for, and after an exception, which may have left anything behind. Only one is kept, since it holds a client's
    # examples.

    def __init__(self, oracle_for: Callable[[NodeContext], LocalProblem]) -> None:
        if not callable(oracle_for):
            raise InvalidInput(f"oracle_for must be a function of the node, not {oracle_for!r}")
        self._oracle_for, self._lock = oracle_for, Lock()
        self._made_for, self._problem = "", None

    @contextmanager
    def borrow(self, run: int, node: NodeContext, anew: bool = False) -> Iterator[LocalProblem]:
        """The problem as its construction left it, for one message at a time; with `anew` its data are read again."""
        # The owner's function may have read all of this.
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
            "give a TorchOracle, a JaxOracle, a SklearnOracle or a TrainedClient"
        )
    if used:  # else it may have been made before
        named = {name: np.array(value) for schema in used for name, value in schema.parts.items()}
        problem.schemas = {f"schema.toml, {name}": value for name, value in named.items()}
    return problem


def _compare_constants(problem: LocalProblem, run: int, node: NodeContext, connects: bool) -> None:
    # Keep digests of a problem's constants when its node connects; afterwards raise `InvalidInput` if one differs.
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


_Replying = Callable[[int, NodeContext, RecordDict], RecordDict]
"""(number of the run, node, what came) -> what is answered."""


@named_arguments
def client_app(
    oracle_for: Callable[[NodeContext], LocalProblem],
    *,
    trusted: Collection[Any] = (),
    max_epsilon: float | None = None,
    delta: float = 1e-5,
    min_noise: float | None = None,
    statistics: Callable[[NodeContext], Mapping[str, Any]] | None = None,
    min_rows: int = 10,
    max_questions: int = 100,
    analyses: Collection[str] = (),
    min_sum: int | None = None,
    peers: str | Path | None = None,
    second_sums: bool = True,
) -> ClientApp:
    """Make Flower's client app, for any method; the server's orders name the method.

    Args:
        oracle_for: node -> the client's own problem: a `TorchOracle`, `JaxOracle`, `SklearnOracle` or `TrainedClient`.
            The node is a `NodeContext`, whose `client` is the client's number. A process that answers many messages
            calls it once a run, and again after an exception.
        trusted: classes and functions of yours that a method may consist of besides fedsolve's own, such as
            `(MyMethod, MyServerOptimizer)`; the server's orders can name nothing else.
        max_epsilon: the largest epsilon over all messages that this client sends, in all experiments, > 0: of noise of
            its own (LocalDP), or of noise in shares (`DP(at="distributed")` under `fs.Secure`) in the smallest sum.
            Beyond it, and without such noise, it sends nothing. None for no bound: it is counted all the same.
        delta: at which that epsilon is, in (0, 1).
        min_noise: least noise multiplier of such noise, > 0; to methods with less it sends nothing. None for any.
        statistics: node -> the columns that `fedsolve federate statistics` may ask about, by name: numbers (NaN where
            one is missing) or text ('' where one is missing), shape (rows,). The server is sent sums and counts over
            rows, without noise. None allows no statistics.
        min_rows: rows with a value that such a column must have, >= 1; a category with fewer is not named, and a bin
            with fewer is joined to others, except in sums.
        max_questions: questions about a column that are answered in all experiments, >= 1; a statistic takes one, an
            analysis one for its categories and one for each 50 rounds of sums over the same columns.
        analyses: which models and curves the server may ask sums over rows of these columns for, of "glm", "cox" and
            "kaplan_meier" (`fedsolve federate glm`). Their sums say more about rows than statistics of single columns.
        min_sum: number of clients whose sum the server may see, >= 3; the client then takes part in methods under
            `fs.Secure` and in statistics with `--secure` alone. None: it answers others too, and takes part in sums of
            at least 3 clients.
        peers: TOML file with the public keys of all clients, for sums under `fs.Secure`: client number = key. None to
            trust those that the server sends first.
        second_sums: whether a sum under `fs.Secure` may be opened a second time when the server was interrupted: of the
            same clients, or of others that differ by at least `min_sum` clients. With False such a round is skipped,
            as with `max_epsilon`, which counts one sum.

    Returns:
        The app that a node's `flower-supernode` runs, as `app` of the module that Flower's configuration names.

    Raises:
        InvalidInput: an argument that is unknown or out of its range, what is trusted no class or function, or
            statistics, which have no noise, beside a bound that asks for it.

    The node's configuration says who the client is (`client-id`, or Flower's `partition-id`), and may say what its site
    is called (`site`) and where its state is kept (`state-dir`, default `fedsolve-state`). What goes wrong on a client
    is written to the node's log; the server is told in one line without the node's folders, and of an exception of the
    client's own code its type alone. With `min_sum`, of a refusal that may depend on data it is told nothing else.

    >>> import fedsolve as fs                                                       # doctest: +SKIP
    >>> app = client_app(lambda node: fs.flower.JaxOracle.of_task(task, node.client))  # doctest: +SKIP
    """
    app = ClientApp()
    hides = min_sum is not None
    answered = partial(_answer, hides)
    trusted_parts(trusted)  # refuses at the start what no order could name
    budget, cache = PrivacyBudget(max_epsilon, delta, min_noise), OracleCache(oracle_for)
    sums = SecureSums(min_sum, peers, second_sums)
    sums = sums if max_epsilon is None else replace(sums, second_sums=False)
    allowed = AllowedColumns(statistics, min_rows, budget, sums, max_questions, analyses)

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return answered(message, context, partial(_introduce, hides, cache))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answered(message, context, partial(_train_and_evaluate, hides, orders, questions))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answered(message, context, questions)

    @app.query(ACTION)
    def columns(message: Message, context: Context) -> Message:
        return answered(message, context, partial(_tell_columns, hides, allowed.reply))

    @app.query(ROWS)
    def rows(message: Message, context: Context) -> Message:
        return answered(message, context, partial(_tell_columns, hides, partial(reply_to_question, allowed)))

    @app.query(PROTOCOL)
    def secure(message: Message, context: Context) -> Message:
        def answer(run: int, node: NodeContext, record: RecordDict) -> RecordDict:
            problem = partial(cache.borrow, run, node)
            return sums.answer(node, states_of(node.node_config), record, problem, _log)

        return answered(message, context, answer)

    def reply_to(
        kind: type[AnyRequest],
        work: Callable[[Worker, AnyRequest], Reply],
        run: int,
        node: NodeContext,
        record: RecordDict,
    ) -> RecordDict:
        """What this client makes of a request that is for it."""
        with cache.borrow(run, node) as problem:
            with about_request():
                request = record_to_request(kind, record, problem.buffers)
                codec.clear_record(record)  # the numbers of a large model are the request's alone
                if request.client != node.client:
                    raise InvalidInput(
                        f"the order is for client {request.client}, this is client {node.client}"
                    )
            states = states_of(node.node_config)
            worker = Worker(problem, states, trusted, budget, sums, node.run_config, _log)
            return to_record(work(worker, request))

    orders = partial(reply_to, TrainRequest, Worker.train)
    questions = partial(reply_to, EvaluateRequest, Worker.evaluate)
    return app


def _introduce(
    hides: bool, cache: OracleCache, run: int, node: NodeContext, record: RecordDict
) -> RecordDict:
    # Who this client is, and which model it has where the server asks for that: statistics need none.
    facts: dict[str, Any] = {"client": node.client}
    framework, more = "numpy", dict[str, Any](site=node.site)
    try:
        if record.config_records.get("who", ConfigRecord()).get("model") is not False:
            with cache.borrow(run, node, anew=True) as problem:
                facts["signature"], framework = signature(problem.params), problem.framework
                more |= {"constants": constant_digests(problem.shared), "notes": list(problem.notes)}
                more |= {"loop": isinstance(problem, TrainedClient)}
        facts |= {name: value for name, value in more.items() if value}
        return RecordDict({"client": ConfigRecord(facts), VERSIONS: own_versions(framework)})
    except Exception as error:
        return _named_refusal(error, node, hides)


def _tell_columns(
    hides: bool, reply: Callable[..., RecordDict], _: int, node: NodeContext, record: Any
) -> RecordDict:
    try:
        return reply(node, states_of(node.node_config), record, _log)
    except Exception as error:
        if hides:
            raise
        return _named_refusal(error, node, hides)


def _named_refusal(error: Exception, node: NodeContext, hides: bool) -> RecordDict:
    # One that says whose it is, to a server that may not know.
    _print(error)
    who, states = f"{node.site or numbered(node.client)}: ", str(states_of(node.node_config))
    return codec.refusal(error, who, states, node.client, hides)


def _train_and_evaluate(
    hides: bool, orders: _Replying, questions: _Replying, run: int, node: NodeContext, record: RecordDict
) -> RecordDict:
    # The reply to an order, and to a question about a model that came with it: either may be refused alone.
    question = codec.separate(record, EVALUATE)
    if not question:
        return orders(run, node, record)
    answer, reply = (
        _or_refusal(hides, node.node_config, partial(replying, run, node, part))
        for replying, part in ((questions, question), (orders, record))
    )
    return codec.join({TRAIN: reply, EVALUATE: answer})


def _answer(hides: bool, message: Message, context: Context, make_content: _Replying) -> Message:
    content = _or_refusal(
        hides,
        context.node_config,
        lambda: make_content(context.run_id, _node_context(context), message.content),
    )
    return Message(content, reply_to=message)


def _or_refusal(
    hides: bool, node_config: Mapping[str, Any], make_content: Callable[[], RecordDict]
) -> RecordDict:
    # What is made, or the reason why nothing is; with `hides` none that may depend on data.
    try:
        return make_content()
    except Exception as error:  # of the client's own code, or of an order that nothing foresaw
        _print(error)
        return codec.refusal(error, folder=str(states_of(node_config)), hides=hides)


def _print(error: Exception) -> None:
    # One line for the node's log; of an exception that is not ours, also one that an error of ours says, its traceback.
    if isinstance(error, FedsolveError):
        _log(str(error))
    cause = error.__cause__ if isinstance(error, InvalidInput) else error
    if cause is not None and not isinstance(cause, FedsolveError):
        traceback.print_exception(cause)


def _log(line: str) -> None:
    print(f"fedsolve: {sanitize(line, 1000)}", flush=True)


@about_request()
def _node_context(context: Context) -> NodeContext:
    config = dict(context.node_config)
    client = config.get("client-id", config.get("partition-id"))
    if client is None:
        raise InvalidInput(
            "the node does not say which client it is: start it with --node-config 'client-id=0', "
            "numbers from 0"
        )
    number = check_integer("client-id of the node", client)
    return NodeContext(number, site_of(config), config, dict(context.run_config))
