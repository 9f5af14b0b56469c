"""A client without Flower: a request in, local work on its own data and state, a reply out."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from fedsolve.core import introspect, trees, wire
from fedsolve.core.algorithm import Algorithm
from fedsolve.core.buffers import Memory
from fedsolve.core.errors import InvalidInput
from fedsolve.core.loss_checks import why_not_finite
from fedsolve.core.oracle import WrappedOracle, beginning_of
from fedsolve.core.xla.compiler import compiler_options
from fedsolve.deploy.client.secure_sums import SecureSums, SumOrder
from fedsolve.deploy.client.state import ClientState, Ledger, PrivacyBudget, StateLost
from fedsolve.deploy.host import all_finite
from fedsolve.deploy.message import (
    EvaluateReply,
    EvaluateRequest,
    PartMetrics,
    Request,
    TrainReply,
    TrainRequest,
    request_digest,
)
from fedsolve.deploy.method_spec import method_from_spec, solver_from_spec
from fedsolve.deploy.oracles.node_oracle import LocalProblem, check_needs
from fedsolve.deploy.oracles.trained import TrainedClient, run_loop
from fedsolve.deploy.reply_checks import (
    check_buffers,
    check_known_metrics,
    check_still,
    check_unprotected,
    protects,
)
from fedsolve.deploy.sanitize import about_request
from fedsolve.deploy.secret_keys import secret_key
from fedsolve.deploy.secure.sums import Counts, Measured, SummedMetrics
from fedsolve.deploy.signature import (
    compare_signatures,
    float_type,
    precision_of,
    signature,
    signature_digest,
)
from fedsolve.engine.compute.casting import cast
from fedsolve.methods.trained import with_loop
from fedsolve.methods.wrappers.buffers import BesideBroadcast, KeepsBuffers


def train(
    problem: LocalProblem, algorithm: Any, broadcast: Any, before: Any, request: TrainRequest
) -> tuple[Any, Any]:
    """The message and the next state of a client; a method's noise is this machine's own."""
    key = jax.random.wrap_key_data(jnp.asarray(request.key, jnp.uint32))
    oracle = problem.begin(key, request.client, float_type(problem.params), secret_key())
    if isinstance(problem, TrainedClient):
        oracle = run_loop(problem, algorithm, broadcast, before, oracle, request.round)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            # in the memory of the model where the loop ended; whether it is finite would take more in a program
            made = _compiled(_message, (3,))(algorithm, broadcast, before, oracle)
        if not all_finite(made):
            raise InvalidInput(f"the update of client {request.client} is not finite: lower the loop's rate")
        return made
    algorithm.with_steps(int(oracle.steps))  # a method that was told another number refuses
    around, down = algorithm, broadcast
    if problem.beside is not None:
        around, down = KeepsBuffers(algorithm, problem.beside), BesideBroadcast(broadcast, problem.beside)
    with problem.failing_plainly():
        message, after, is_finite = jax.block_until_ready(_compiled(_train)(around, down, before, oracle))
        if not is_finite:
            why = _why_not_finite_at_start(around, down, before, oracle, problem.beside)
            remedy = why or "lower the client's rate"
            raise InvalidInput(f"the update of client {request.client} is not finite: {remedy}")
    if problem.beside is not None:
        problem.beside, message = jax.device_get(message.buffers), message.inner
    return message, after


def tune(problem: LocalProblem, solver: Any, model: Any, request: EvaluateRequest) -> Any:
    """The model after local steps from it; buffers are left as the steps leave them."""
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
def _compiled(function: Callable[..., Any], donated: tuple[int, ...] = ()) -> Any:
    return jax.jit(function, compiler_options=compiler_options(), donate_argnums=donated)


@dataclass(frozen=True)
class _WithoutNoise(WrappedOracle):
    """An oracle whose method adds no noise in the program: its share is added afterwards, outside."""

    key = None  # pyright: ignore[reportIncompatibleVariableOverride, reportAssignmentType]

    def change(self, params: Any, gradient: Any) -> Any:
        return gradient

    def trained(self, params: Any) -> Any:
        return self.inner.trained(params)


def _why_not_finite_at_start(
    algorithm: Any, broadcast: Any, before: Any, oracle: Any, buffers: Any
) -> str | None:
    # What is not finite at the model that local work begins from; None where all is, or it begins otherwise.
    with jax.disable_jit():  # the model is then an array, also inside a loop
        began = beginning_of(algorithm.train, broadcast, before, oracle)
    if began is None:
        return None
    if buffers is not None:
        oracle = oracle.remembering(Memory(jax.tree.map(jnp.asarray, buffers)))
    for computed in (lambda: oracle(*began), lambda: oracle.full(began[0])):  # of the first batch, of all
        loss, gradient = computed()
        if why := why_not_finite(float(loss), bool(trees.all_finite(gradient))):
            return why
    return None


def _message(algorithm: Any, broadcast: Any, before: Any, oracle: Any) -> tuple[Any, Any]:
    if algorithm.traits.privacy == "distributed":
        oracle = _WithoutNoise(oracle)
    return algorithm.train(broadcast, before, oracle)


def _train(*given: Any) -> tuple[Any, Any, Any]:
    message, after = _message(*given)
    return message, after, trees.all_finite((message, after))


def _steps(solver: Any, model: Any, buffers: Any, oracle: Any) -> tuple[Any, Any]:
    if buffers is None:
        return solver.solve(model, oracle, 0).params, None
    memory = Memory(jax.tree.map(jnp.asarray, buffers))
    return solver.solve(model, oracle.remembering(memory), 0).params, memory.read()


@dataclass(frozen=True)
class Worker:
    """One client of a federation."""

    problem: LocalProblem
    folder: Path
    trusted: Collection[Any] = ()  # classes and functions of its owner's that a method may consist of
    # the noise that its owner demands; by default any, and none
    budget: PrivacyBudget = field(default_factory=PrivacyBudget)
    sums: SecureSums = field(default_factory=SecureSums)
    # the configuration of Flower's run, which the owner's code may have read
    run_config: Mapping[str, Any] = field(default_factory=dict)
    log: Callable[[str], None] = lambda line: None  # told in one line what its owner should know

    def train(self, request: TrainRequest) -> TrainReply:
        """A client's part of a round: local work from the server's model and the client's own state."""
        self.problem.folder = self._states(request).loop
        with precision_of(self.problem.params):
            with about_request():
                method = self._with_loop(self._method(request))
                check_needs(method, self.problem)
                check_buffers(method, self.problem.buffers)
                check_still(method, self.problem.moving_buffers)
                noise = self.budget.check(method)
                self.sums.check(method, request)
                order = self._order("train", request)
                self.sums.check_order(self.folder, order, self.log)
            if noise is None:
                return self._trained(request, method, order)
            ledger = Ledger(self.folder, request.client, self.budget)
            return ledger.send(request, noise, lambda: self._trained(request, method, order), self.log)

    def evaluate(self, request: EvaluateRequest) -> EvaluateReply:
        """Metrics of the server's model, or of the client's own where the method gives it one, as it is or after steps.

        Nothing is written: states, examples and buffers are afterwards what they were.
        """
        self.problem.folder = self._states(request).loop
        with precision_of(self.problem.params):
            with about_request():
                method = self._method(request)
                check_unprotected(method)
                self.budget.refuse_without_noise("metrics have no noise")
                self.sums.check(method, request)
                # What is measured is part of the digest, and not known yet: the rest of the order can be refused now.
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
        in_order = {part: _in_requested_order(metrics, request.metrics) for part, metrics in parts.items()}
        return EvaluateReply(request.experiment, request.round, request.client, request.steps, in_order)

    def _method(self, request: Request) -> Algorithm:
        compare_signatures(signature(self.problem.params), request.signature, request.client)
        return method_from_spec(request.method, self.trusted)

    def _with_loop(self, method: Algorithm) -> Algorithm:
        return with_loop(method) if isinstance(self.problem, TrainedClient) else method

    def _cast(self, value: Any) -> Any:
        return cast(value, float_type(self.problem.params))

    def _states(self, request: Request) -> ClientState:
        return ClientState(self.folder, request.experiment, request.client)

    def _trained(self, request: TrainRequest, method: Algorithm, order: SumOrder) -> TrainReply:
        algorithm = self._cast(method)
        params = self.problem.params
        like = introspect.broadcast_shape(algorithm, params, request.population)
        broadcast = jax.tree.map(jnp.asarray, wire.decode(request.broadcast, like, params))
        sent = request.first_broadcast
        first = broadcast if sent is None else wire.decode(sent, like, params)
        before = jax.eval_shape(algorithm.enrol, first, params)
        is_stateful, states = bool(jax.tree.leaves(before)), self._states(request)
        if is_stateful:
            # Every client's state begins with the first round's broadcast, whenever it joins.
            before = algorithm.enrol(first, jax.tree.map(jnp.asarray, self.problem.initial))
            try:
                before = states.load(request.last_used_round, before)
            except StateLost as lost:
                before = self._replacement_state(lost, request, algorithm, broadcast, before)
        if request.buffers:
            self.problem.load_buffers(request.buffers)
        # Under a method that protects updates buffers stay those of the server.
        given = self.problem.buffers if protects(method) else {}
        # of a large model there is one copy from the server at a time, none beside the reply
        sent = first = None
        request.let_go()
        message, after = train(self.problem, algorithm, broadcast, before, request)
        del broadcast
        buffers = self.problem.buffers
        if given:
            check_still(method, [name for name, x in given.items() if x.tobytes() != buffers[name].tobytes()])
            buffers = {}  # those of the server
        encoded = (
            wire.encode(message)
            if order.masks is None
            else self.sums.masked(self.folder, order, algorithm, message, self.log)
        )
        if is_stateful:
            # Before the reply is sent: a server that uses it asks for this state in its next order.
            states.save(request.round, after, request.last_used_round)
        return TrainReply(
            request.experiment,
            request.round,
            request.client,
            signature_digest(message),
            int(self.problem.num_examples) if algorithm.traits.weighting == "examples" else 1,
            encoded,
            dict(buffers),
            self.problem.untold,
        )

    def _order(self, kind: str, request: Request, *more: bytes) -> SumOrder:
        # what masks follow from; of a large model it takes as long as all else that a client does with an order
        digest = request_digest(request, self.run_config, *more) if request.masks is not None else None
        return SumOrder(request.experiment, request.client, kind, request.round, digest, request.masks)

    def _replacement_state(
        self, lost: StateLost, request: TrainRequest, algorithm: Algorithm, broadcast: Any, initial: Any
    ) -> Any:
        # What takes the place of a state that was lost: the server's, or a new one as if the client joined now. No
        # new one where the server keeps an exact mean of its clients' states: an old one would stay in that mean.
        if request.tracked_state is not None:
            self.log(f"{lost}: it goes on from the state that the server tracks")
            return wire.decode(request.tracked_state, initial)
        if algorithm.traits.only_mean:
            raise StateLost(f"{lost}: restore it; a new file cannot replace it, {algorithm.traits.only_mean}")
        self.log(f"{lost}: it starts with a new one")
        return algorithm.enrol(broadcast, jax.tree.map(jnp.asarray, self.problem.initial))

    def _model(self, request: EvaluateRequest, algorithm: Algorithm) -> Any:
        model = wire.decode(request.model, self.problem.params)
        if not algorithm.traits.personal:
            return model
        algorithm = self._with_loop(algorithm)
        params = jax.tree.map(jnp.asarray, self.problem.initial)
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


def _in_requested_order(metrics: PartMetrics, names: tuple[str, ...]) -> PartMetrics:
    names = tuple(name for name in names if name not in metrics.sums)
    means, counts = ({name: kind[name] for name in names} for kind in (metrics.means, metrics.counts))
    return PartMetrics(metrics.examples, means, counts, metrics.sums)
