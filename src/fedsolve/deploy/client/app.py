"""The client: its app on Flower, what it does with a request, and its problem kept from message to message."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedsolve.core import introspect, trees, wire
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.buffers import Memory
from fedsolve.core.errors import FedsolveError, InvalidInput, check_integer
from fedsolve.core.loss_checks import why_not_finite
from fedsolve.core.oracle import WrappedOracle
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.data.schema import schemas_used
from fedsolve.deploy import codec as records
from fedsolve.deploy.client.secure_sums import SecureSums, SumOrder
from fedsolve.deploy.client.state import ClientState, Ledger, PrivacyBudget, StateLost
from fedsolve.deploy.codec import AnyRequest, record_to_request, to_record
from fedsolve.deploy.column_records import ACTION
from fedsolve.deploy.host import share_threads
from fedsolve.deploy.message import (
    EVALUATE,
    TRAIN,
    EvaluateReply,
    EvaluateRequest,
    PartMetrics,
    Reply,
    Request,
    TrainReply,
    TrainRequest,
    request_digest,
)
from fedsolve.deploy.method_spec import method_from_spec, solver_from_spec, trusted_parts
from fedsolve.deploy.oracles.node_oracle import LocalProblem, NodeContext, check_needs, states_of
from fedsolve.deploy.reply_checks import (
    check_buffers,
    check_known_metrics,
    check_still,
    check_unprotected,
    protects,
)
from fedsolve.deploy.sanitize import about_request, sanitize
from fedsolve.deploy.secret_keys import secret_key
from fedsolve.deploy.secure.questions import ACTION as SECURE
from fedsolve.deploy.secure.sums import Counts, Measured, SummedMetrics
from fedsolve.deploy.server.settings import named_arguments
from fedsolve.deploy.signature import (
    compare_signatures,
    constant_digests,
    float_type,
    other_constant,
    precision_of,
    signature,
    signature_digest,
)
from fedsolve.deploy.site_names import numbered, site_of
from fedsolve.deploy.statistics_job import AllowedColumns
from fedsolve.deploy.status import RECORD as VERSIONS
from fedsolve.deploy.status import own_versions
from fedsolve.engine.compute.casting import cast
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import MALFORMED, loads, read_bytes
from fedsolve.methods.wrappers.buffers import BesideBroadcast, KeepsBuffers

# A client's local work as one compiled call: that of a round, and steps of a solver before a model is measured.


def train(
    problem: LocalProblem, algorithm: Any, broadcast: Any, before: Any, request: TrainRequest
) -> tuple[Any, Any]:
    """The message and the next state of a client; a method's noise is this machine's own.

    Raises:
        InvalidInput: they are not finite.
    """
    key = jax.random.wrap_key_data(jnp.asarray(request.key, jnp.uint32))
    oracle = problem.begin(key, request.client, float_type(problem.params), secret_key())
    algorithm.with_steps(int(oracle.steps))  # a method that was told another number refuses
    around, down = algorithm, broadcast
    if problem.beside is not None:
        around, down = KeepsBuffers(algorithm, problem.beside), BesideBroadcast(broadcast, problem.beside)
    with problem.failing_plainly():
        message, after, is_finite = jax.block_until_ready(_compiled(_train)(around, down, before, oracle))
        if not is_finite:
            why = _at_start(around, down, before, oracle, problem.beside)
            remedy = why or "lower the client's rate"
            raise InvalidInput(f"the update of client {request.client} is not finite: {remedy}")
    if problem.beside is not None:
        problem.beside, message = jax.device_get(message.buffers), message.inner
    return message, after


def tune(problem: LocalProblem, solver: Any, model: Any, request: EvaluateRequest) -> Any:
    """The model after local steps from it; buffers are left as the steps leave them.

    Raises:
        InvalidInput: it is not finite.
    """
    key = jax.random.wrap_key_data(jnp.asarray(request.key, jnp.uint32))
    oracle = problem.begin_steps(key, request.client, float_type(problem.params), request.steps)
    with problem.failing_plainly():
        tuned, buffers = jax.block_until_ready(_compiled(_steps)(solver, model, problem.beside, oracle))
    if not trees.all_finite(tuned):
        raise InvalidInput(
            f"the model of client {request.client} is not finite after {request.steps} local steps: lower their rate"
        )
    if problem.beside is not None:
        problem.beside = jax.device_get(buffers)
    return tuned


@cache
def _compiled(function: Callable[..., Any]) -> Any:
    return jax.jit(function, compiler_options=compiler_options())


@dataclass(frozen=True)
class _WithoutNoise(WrappedOracle):
    """An oracle whose method adds no noise in the program: its share is added afterwards, outside."""

    key = None  # pyright: ignore[reportIncompatibleVariableOverride, reportAssignmentType]

    def change(self, params: Any, gradient: Any) -> Any:
        return gradient


class _Began(Exception):
    """Raised by the first gradient that local work asks for: at which model, of which step."""


@dataclass(frozen=True)
class _Beginning(WrappedOracle):
    """An oracle that ends local work where it begins."""

    def __call__(self, params: Any, step: Any) -> Any:
        raise _Began(params, step)

    def remembering(self, memory: Any) -> _Beginning:
        return self


def _at_start(algorithm: Any, broadcast: Any, before: Any, oracle: Any, buffers: Any) -> str | None:
    """What is not finite at the model that local work begins from; None where all is, or it begins otherwise."""
    try:
        with jax.disable_jit():  # the model is then an array, also inside a loop
            algorithm.train(broadcast, before, _Beginning(oracle))
    except _Began as began:
        loss, gradient = _compiled(_first)(oracle, buffers, *began.args)
        return why_not_finite(float(loss), bool(trees.all_finite(gradient)))
    return None


def _first(oracle: Any, buffers: Any, params: Any, step: Any) -> Any:
    if buffers is not None:
        oracle = oracle.remembering(Memory(jax.tree.map(jnp.asarray, buffers)))
    return oracle(params, step)


def _train(algorithm: Any, broadcast: Any, before: Any, oracle: Any) -> tuple[Any, Any, Any]:
    if algorithm.traits.privacy == "distributed":
        oracle = _WithoutNoise(oracle)
    message, after = algorithm.train(broadcast, before, oracle)
    return message, after, trees.all_finite((message, after))


def _steps(solver: Any, model: Any, buffers: Any, oracle: Any) -> tuple[Any, Any]:
    if buffers is None:
        return solver.solve(model, oracle, 0).params, None
    memory = Memory(jax.tree.map(jnp.asarray, buffers))
    return solver.solve(model, oracle.remembering(memory), 0).params, memory.read()


# A client without Flower: a request in, its own data and state, a reply out.


@dataclass(frozen=True)
class Worker:
    """One client of a federation.

    Attributes:
        problem: its model and data.
        folder: where its states and its ledger are.
        trusted: classes and functions of its owner's that a method may consist of.
        budget: the noise that its owner demands; by default any, and none.
        sums: its part in secure sums.
        run_config: the configuration of Flower's run, which the owner's code may have read.
        log: told in one line what its owner should know.
    """

    problem: LocalProblem
    folder: Path
    trusted: Collection[Any] = ()
    budget: PrivacyBudget = field(default_factory=PrivacyBudget)
    sums: SecureSums = field(default_factory=SecureSums)
    run_config: Mapping[str, Any] = field(default_factory=dict)
    log: Callable[[str], None] = lambda line: None

    def train(self, request: TrainRequest) -> TrainReply:
        """A client's part of a round: local work from the server's model and the client's own state.

        Raises:
            InvalidInput: a model that is not the server's, a method that cannot be built or needs
                what the client cannot give, a state that is missing, a bound that is reached, or results that are not
                finite.
        """
        with precision_of(self.problem.params):
            with about_request():
                method = self._method(request)
                check_needs(method, self.problem)
                check_buffers(method, self.problem.buffers)
                check_still(method, self.problem.moving_buffers)
                noise = self.budget.check(method)
                self.sums.check(method, request)
                self.sums.check_order(self.folder, self._order("train", request), self.log)
            if noise is None:
                return self._trained(request, method)
            ledger = Ledger(self.folder, request.client, self.budget)
            return ledger.send(request, noise, lambda: self._trained(request, method), self.log)

    def evaluate(self, request: EvaluateRequest) -> EvaluateReply:
        """Metrics of the server's model, or of the client's own where the method gives it one, as it is or after steps.

        Nothing is written: states, examples and buffers are afterwards what they were.

        Raises:
            InvalidInput: a model that is not the server's, a method that cannot be built or protects what clients send,
                a bound under local differential privacy, a metric that there is not, a state that is missing, steps
                that make no finite model.
        """
        with precision_of(self.problem.params):
            with about_request():
                method = self._method(request)
                check_unprotected(method)
                self.budget.refuse_without_noise("metrics have no noise")
                self.sums.check(method, request)
                unmeasured = self._order("evaluate", request)._replace(request=None)
                self.sums.check_order(self.folder, unmeasured, self.log)
                check_known_metrics(request, self.problem.metrics)
                solver = None if request.solver is None else solver_from_spec(request.solver, self.trusted)
            with self.problem.restored():
                if request.buffers:
                    self.problem.load_buffers(request.buffers)
                model = self._model(request, self._cast(method))
                if solver is not None:
                    model = tune(self.problem, self._cast(solver), model, request)
                parts = self.problem.measure(model, request.metrics)
        if request.masks is not None:
            measured = Measured.of(parts, request.metrics)._replace(parts=request.parts)
            summed = SummedMetrics(request.metrics, measured, request.population)
            order = self._order("evaluate", request, measured.to_bytes())
            masked = self.sums.mask(
                self.folder, order, summed.to_words(parts), Counts(0, summed.width), self.log
            )
            return EvaluateReply(request.experiment, request.round, request.client, request.steps, {}, masked)
        in_order = {part: _in_order(metrics, request.metrics) for part, metrics in parts.items()}
        return EvaluateReply(request.experiment, request.round, request.client, request.steps, in_order)

    def _method(self, request: Request) -> Algorithm:
        """The method of a request, if its model is this client's."""
        compare_signatures(signature(self.problem.params), request.signature, request.client)
        return method_from_spec(request.method, self.trusted)

    def _cast(self, value: Any) -> Any:
        return cast(value, float_type(self.problem.params))

    def _states(self, request: Request) -> ClientState:
        return ClientState(self.folder, request.experiment, request.client)

    def _trained(self, request: TrainRequest, method: Algorithm) -> TrainReply:
        algorithm = self._cast(method)
        params = jax.tree.map(jnp.asarray, self.problem.params)
        like = introspect.broadcast_shape(algorithm, params, request.population)
        broadcast = wire.decode(request.broadcast, like, params)
        sent = request.first_broadcast
        first = broadcast if sent is None else wire.decode(sent, like, params)
        before = algorithm.enrol(first, params)
        is_stateful, states = bool(jax.tree.leaves(before)), self._states(request)
        if is_stateful:
            try:
                before = states.load(request.last_used_round, before)
            except StateLost as lost:
                before = self._in_place_of(lost, request, algorithm, broadcast, before)
        if request.buffers:
            self.problem.load_buffers(request.buffers)
        given = self.problem.buffers if protects(method) else {}
        message, after = train(self.problem, algorithm, broadcast, before, request)
        buffers = self.problem.buffers
        if given:
            check_still(method, [name for name, x in given.items() if x.tobytes() != buffers[name].tobytes()])
            buffers = {}  # those of the server
        encoded = self._encoded(request, algorithm, message)
        if is_stateful:
            states.save(request.round, after, request.last_used_round)
        return TrainReply(
            request.experiment,
            request.round,
            request.client,
            signature_digest(message),
            int(self.problem.num_examples) if algorithm.traits.weighting == "examples" else 1,
            encoded,
            dict(buffers),
        )

    def _encoded(self, request: Request, method: Algorithm, message: Any) -> bytes:
        """A message as it is sent: masked where the method asks for sums alone."""
        if request.masks is None:
            return wire.encode(message)
        return self.sums.masked(self.folder, self._order("train", request), method, message, self.log)

    def _order(self, kind: str, request: Request, *more: bytes) -> SumOrder:
        """What the reply to a request is summed under."""
        digest = request_digest(request, self.run_config, *more)
        return SumOrder(request.experiment, request.client, kind, request.round, digest, request.masks)

    def _in_place_of(
        self, lost: StateLost, request: TrainRequest, algorithm: Algorithm, broadcast: Any, initial: Any
    ) -> Any:
        """The state that takes the place of one that was lost: the server's, or a new one as if the client joined now.

        No new one where the server keeps an exact mean of its clients' states (`Traits.only_mean`): an old state would
        stay in that mean.

        Raises:
            StateLost: the method does not allow it.
        """
        if request.tracked_state is not None:
            self.log(f"{lost}: it goes on from the state that the server tracks")
            return wire.decode(request.tracked_state, initial)
        if algorithm.traits.only_mean:
            raise StateLost(f"{lost}: restore it; a new file cannot replace it, {algorithm.traits.only_mean}")
        self.log(f"{lost}: it starts with a new one")
        return algorithm.enrol(broadcast, jax.tree.map(jnp.asarray, self.problem.params))

    def _model(self, request: EvaluateRequest, algorithm: Algorithm) -> Any:
        """The model that this client is measured with."""
        params = jax.tree.map(jnp.asarray, self.problem.params)
        model = wire.decode(request.model, params)
        if not algorithm.traits.personal:
            return model
        like = introspect.broadcast_shape(algorithm, params, request.population)
        if request.first_broadcast is not None:
            first = wire.decode(request.first_broadcast, like, params)
        elif request.last_used_round < 0:
            raise InvalidInput(
                "it lacks the first broadcast, from which a client that never took part begins"
            )
        else:
            first = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), like)
        initial = algorithm.enrol(first, params)
        return algorithm.own_model(model, self._states(request).load(request.last_used_round, initial))


def _in_order(metrics: PartMetrics, names: tuple[str, ...]) -> PartMetrics:
    """The metrics in the order in which they were asked for: their names do not travel back."""
    names = tuple(name for name in names if name not in metrics.sums)
    means, counts = ({name: kind[name] for name in names} for kind in (metrics.means, metrics.counts))
    return PartMetrics(metrics.examples, means, counts, metrics.sums)


# A client's problem, kept from message to message in a process that answers several.


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
