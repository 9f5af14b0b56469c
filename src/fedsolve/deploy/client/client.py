"""The client's app on Flower: one handler for every method."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsolve.core.errors import FedsolveError, InvalidInput, check_integer
from fedsolve.deploy.app_options import named_arguments
from fedsolve.deploy.client.kept_problem import KeptProblem
from fedsolve.deploy.client.ledger import PrivacyBudget
from fedsolve.deploy.client.node_context import NodeContext, states_of
from fedsolve.deploy.client.secure_sums import SecureSums
from fedsolve.deploy.client.worker import Worker
from fedsolve.deploy.jobs.allowed_columns import AllowedColumns
from fedsolve.deploy.jobs.column_records import ACTION
from fedsolve.deploy.messages import records
from fedsolve.deploy.messages.allowed_classes import trusted_parts
from fedsolve.deploy.messages.codec import AnyRequest, record_to_request, to_record
from fedsolve.deploy.messages.message import EVALUATE, TRAIN, EvaluateRequest, Reply, TrainRequest
from fedsolve.deploy.messages.sanitize import about_request, sanitize
from fedsolve.deploy.messages.signature import constant_digests, signature
from fedsolve.deploy.monitoring.versions import RECORD as VERSIONS
from fedsolve.deploy.monitoring.versions import own_versions
from fedsolve.deploy.oracles.node_oracle import LocalProblem
from fedsolve.deploy.secure_rounds.secure_records import ACTION as SECURE
from fedsolve.deploy.site_names import numbered, site_of

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
    min_sum: int | None = None,
    peers: str | Path | None = None,
    second_sums: bool = True,
) -> ClientApp:
    """Make Flower's client app, for any method; the server's orders name the method.

    Args:
        oracle_for: node -> the client's own problem: a `TorchOracle`, `JaxOracle` or `SklearnOracle`. The node
            is a `NodeContext`, whose `client` is the client's number. A process that answers many messages calls it
            once a run, and again after an exception.
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
        max_questions: questions about a column that are answered in all experiments, >= 1; a statistic takes one.
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
    budget, kept = PrivacyBudget(max_epsilon, delta, min_noise), KeptProblem(oracle_for)
    sums = SecureSums(min_sum, peers, second_sums)
    sums = sums if max_epsilon is None else replace(sums, second_sums=False)
    allowed = AllowedColumns(statistics, min_rows, budget, sums, max_questions)
    trusted_parts(trusted)  # refuses at the start what no order could name

    @app.query()
    def who(message: Message, context: Context) -> Message:
        return answered(message, context, partial(_introduce, hides, kept))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return answered(message, context, partial(_reply_to_order, hides, orders, questions))

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return answered(message, context, questions)

    @app.query(ACTION)
    def columns(message: Message, context: Context) -> Message:
        return answered(message, context, partial(_about_columns, allowed))

    @app.query(SECURE)
    def secure(message: Message, context: Context) -> Message:
        return answered(message, context, partial(_about_sums, sums, kept))

    def reply_to(
        kind: type[AnyRequest],
        work: Callable[[Worker, AnyRequest], Reply],
        run: int,
        node: NodeContext,
        record: RecordDict,
    ) -> RecordDict:
        """What this client makes of a request that is for it."""
        with kept.during(run, node) as problem:
            with about_request():
                request = record_to_request(kind, record, problem.buffers)
                if request.client != node.client:
                    raise InvalidInput(
                        f"the order is for client {request.client}, this is client {node.client}"
                    )
            states = states_of(node.node_config)
            return to_record(
                work(Worker(problem, states, trusted, budget, sums, node.run_config, _log), request)
            )

    orders = partial(reply_to, TrainRequest, Worker.train)
    questions = partial(reply_to, EvaluateRequest, Worker.evaluate)
    return app


def _introduce(hides: bool, kept: KeptProblem, run: int, node: NodeContext, _: RecordDict) -> RecordDict:
    """Who this client is, and which model it has."""
    try:
        with kept.during(run, node, anew=True) as problem:
            shapes, framework = signature(problem.params), problem.framework
            constants, notes = constant_digests(problem.shared), list(problem.notes)
        facts: dict[str, Any] = {"client": node.client, "signature": shapes}
        more = {"constants": constants, "notes": notes, "site": node.site}
        facts |= {name: value for name, value in more.items() if value}
        return RecordDict({"client": ConfigRecord(facts), VERSIONS: own_versions(framework)})
    except Exception as error:
        _print(error)
        who, states = f"{node.site or numbered(node.client)}: ", str(states_of(node.node_config))
        return records.refusal(error, who, states, node.client, hides)


def _about_columns(allowed: AllowedColumns, _: int, node: NodeContext, record: RecordDict) -> RecordDict:
    """What a client replies about its columns."""
    return allowed.reply(node, states_of(node.node_config), record, _log)


def _about_sums(
    sums: SecureSums, kept: KeptProblem, run: int, node: NodeContext, record: RecordDict
) -> RecordDict:
    """What a client answers to the questions of secure sums."""
    return sums.answer(node, states_of(node.node_config), record, partial(kept.during, run, node), _log)


def _reply_to_order(
    hides: bool, orders: _Replying, questions: _Replying, run: int, node: NodeContext, record: RecordDict
) -> RecordDict:
    """The reply to an order, and to a question about a model that came with it: either may be refused alone."""
    question = records.separate(record, EVALUATE)
    if not question:
        return orders(run, node, record)
    answer, reply = (
        _or_refusal(hides, node.node_config, partial(replying, run, node, part))
        for replying, part in ((questions, question), (orders, record))
    )
    return records.join({TRAIN: reply, EVALUATE: answer})


def _answer(hides: bool, message: Message, context: Context, make_content: _Replying) -> Message:
    """What the handler makes, or the reason why it makes nothing."""
    content = _or_refusal(
        hides,
        context.node_config,
        lambda: make_content(context.run_id, _node_context(context), message.content),
    )
    return Message(content, reply_to=message)


def _or_refusal(
    hides: bool, node_config: Mapping[str, Any], make_content: Callable[[], RecordDict]
) -> RecordDict:
    """What is made, or the reason why nothing is; with `hides` none that may depend on data."""
    try:
        return make_content()
    except Exception as error:  # of the client's own code, or of an order that nothing foresaw
        _print(error)
        return records.refusal(error, folder=str(states_of(node_config)), hides=hides)


def _print(error: Exception) -> None:
    """One line for the node's log; of an exception that is not ours, its traceback."""
    if isinstance(error, FedsolveError):
        _log(str(error))
    else:
        traceback.print_exception(error)


def _log(line: str) -> None:
    """One line for the node's log."""
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
