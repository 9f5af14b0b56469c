"""SCAFFOLD (Karimireddy et al. 2020): any method with control variates that cancel client drift."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal, Unpack

import jax
import jax.numpy as jnp

from fedsolve.core import trees
from fedsolve.core.algorithm import Algorithm, Cohort, client_update_of, name_of, round_of, search_of
from fedsolve.core.building import by_name, choice, class_by_name, integer
from fedsolve.core.errors import InvalidInput
from fedsolve.core.oracle import CorrectedOracle, Oracle
from fedsolve.core.schedules import Rate
from fedsolve.core.types import Params, Weighting, module, reduced, replace
from fedsolve.methods.client.sgd import ClientOptions
from fedsolve.methods.client.solver import LocalSolver
from fedsolve.methods.compression.compressed import Compressed
from fedsolve.methods.server.fedopt import FedOpt
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.methods.wrappers.wrapper import Wrapper


@module
class ScaffoldServer:
    """The inner server and the control variate c (shapes of the model)."""

    inner: Any
    control: Params


@module
class ScaffoldBroadcast:
    """The inner broadcast and c."""

    inner: Any
    control: Params


@module
class ScaffoldClient:
    """The inner client and c_i (shapes of the model)."""

    inner: Any
    control: Params


@module
class ScaffoldMessage:
    """The inner message and c_i+ - c_i; the latter counts every participant alike."""

    inner: Any
    control_delta: Params = reduced("average")

    @property
    def delta(self) -> Params:
        return self.inner.delta


@class_by_name("SCAFFOLD")
@module
class ControlVariates(Wrapper):
    """SCAFFOLD around any method with local SGD: control variates correct the drift of the clients.

        client:     y <- y - eta_l (g_i(y) - c_i + c)

        option I:   c_i+ = grad f_i(w)                      option II:  c_i+ = c_i - c + (w - y_K) / (K eta_l)
        server:     inner update;   c <- c + (1/N) sum over S of (c_i+ - c_i)

    Down: the model and c. Up: the client update and c_i+ - c_i. Kept: c_i (all shapes of the model);
    c and c_i start at 0. Where all clients take K steps and count alike, option II sends the client update alone: the
    mean of c_i+ - c_i is -D / (K eta_l) - c, D the mean client update.

    K eta_l is the sum of the rates that the client's own steps applied, so that momentum, schedules, line searches and
    uneven clients are right; clipping and weight decay act on the raw gradient, before the correction (around
    `Proximal` they act on all of it: wrap the other way round). Losses are corrected by <c - c_i, y - w>, which is 0 at
    w: a line search of `inner` searches along what it descends.

    Args:
        inner: the method whose local steps are corrected, such as `FedAvg` or `FedDuAdam`.
        option: how c_i is renewed; II costs nothing, I one full gradient per round.
        weighting: how clients count in the means of `inner`'s messages, in place of the weighting that `inner` was
            given: `uniform` (the paper's Algorithm 1, which corrects the drift from the plain mean of the losses) or
            by `examples`. c is the plain mean of all c_i either way.
        equal_steps: K, if every client takes K local steps in every round; None: `fs.run` finds out, and a deployment,
            whose server does not know, has both vectors sent. Every client checks it.

    Raises:
        InvalidInput: option II with a local solver whose client update is not a sum of gradients; an inner
            method whose messages are not reduced by a mean; `equal_steps` with option I or with clients that count by
            examples. When a run begins: clients that take other numbers of steps than `equal_steps`.
    """

    title: ClassVar[str] = "SCAFFOLD"
    parts: ClassVar[tuple[type, ...]] = (ScaffoldServer, ScaffoldBroadcast, ScaffoldClient, ScaffoldMessage)
    only_mean: ClassVar[str] = "c must stay the mean of all clients' c_i"
    of_model_shape: ClassVar[bool] = True
    inner: Algorithm
    _: KW_ONLY
    option: Literal["I", "II"] = choice("I", "II", default="II")
    weighting: Weighting = choice("uniform", "examples", default="uniform")
    equal_steps: int | None = integer(
        default=None, bits=None, none="where clients take different numbers of steps", later=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.equal_steps is not None and not self._can_send_less:
            raise InvalidInput(f"equal_steps = {self.equal_steps} needs option='II' and weighting='uniform'")
        inner = self.inner
        while isinstance(inner, Wrapper):
            if inner.traits.only_mean == self.only_mean:
                raise InvalidInput(
                    "SCAFFOLD around SCAFFOLD: one set of control variates is enough: wrap once"
                )
            if isinstance(inner, Compressed) and self.option == "II":
                raise InvalidInput(
                    "SCAFFOLD option II needs the clients' updates, which Compressed does not send: use option='I'"
                )
            inner = inner.inner
        if self.inner.traits.reduction is not None:
            raise InvalidInput(f"SCAFFOLD cannot wrap {name_of(self.inner)}: {self.only_mean}")
        if self.inner.traits.privacy:
            raise InvalidInput(
                f"SCAFFOLD cannot wrap {name_of(self.inner)}: clients would send their control variates unprotected"
            )
        if self.option == "II":
            parts = (inner, getattr(inner, "server_optimizer", None))
            if not all(getattr(part, "sends_client_update", True) for part in parts):
                raise InvalidInput(
                    f"SCAFFOLD option II needs the clients' updates, which {name_of(self.inner)} does not send: "
                    "use option='I'"
                )
            solver = self.local
            known = solver is not None and type(solver).rate_sum is not LocalSolver.rate_sum
            if not known and not self._searches:
                raise InvalidInput(
                    "SCAFFOLD option II needs local SGD, whose client update is a sum of gradients; "
                    f"{type(solver or self.inner).__name__} is not: use option='I'"
                )

    @property
    def _searches(self) -> bool:
        """Whether a line search decides the clients' steps; their sum is then in the message."""
        inner = self.inner
        while isinstance(inner, Wrapper):
            inner = inner.inner
        return isinstance(inner, FedOpt) and inner.local.searches

    @property
    def _can_send_less(self) -> bool:
        """Whether c follows from the mean client update where all clients take the same number of steps."""
        return self.option == "II" and self.weighting == "uniform" and not self._searches

    def with_steps(self, steps: int | None) -> Algorithm:
        # the method whose clients send their updates alone, if they take the same number of steps
        if self.equal_steps is not None and steps != self.equal_steps:
            found = "differ between clients" if steps is None else f"are {steps}"
            raise InvalidInput(
                f"SCAFFOLD(equal_steps={self.equal_steps}): local steps {found}; leave equal_steps out"
            )
        around = super().with_steps(steps)
        if steps is None or self.equal_steps is not None or not self._can_send_less:
            return around
        return replace(around, equal_steps=steps)

    def init(self, params: Params) -> ScaffoldServer:
        return ScaffoldServer(self.inner.init(params), trees.zeros_like(params))

    def broadcast(self, server: ScaffoldServer, cohort: Cohort) -> ScaffoldBroadcast:
        return ScaffoldBroadcast(self.inner.broadcast(server.inner, cohort), server.control)

    def init_client(self, broadcast: ScaffoldBroadcast) -> ScaffoldClient:
        return ScaffoldClient(self.inner.init_client(broadcast.inner), trees.zeros_like(broadcast.control))

    def train(
        self, broadcast: ScaffoldBroadcast, client: ScaffoldClient, oracle: Oracle
    ) -> tuple[ScaffoldMessage, ScaffoldClient]:
        # run the inner local work with corrected gradients, then update c_i
        # c - c_i, added to every gradient of the inner local work
        correction = trees.sub(broadcast.control, client.control)
        corrected = CorrectedOracle(oracle, correction, self.model(broadcast))
        message, inner = self.inner.train(broadcast.inner, client.inner, corrected)
        if self.option == "I":
            # option I: c_i+ is the gradient of all examples at w
            change = trees.sub(oracle.full(self.model(broadcast))[1], client.control)
        else:
            local, round = self.local, round_of(broadcast)
            rates = search_of(message).rate_sum if self._searches else local.rate_sum(oracle.steps, round)
            change = self._change(client_update_of(message), rates, broadcast.control)
        # of equal steps the server works out the mean change itself: half the numbers are sent
        sent = message if self.equal_steps is not None else ScaffoldMessage(message, change)
        return sent, ScaffoldClient(inner, trees.add(client.control, change))

    def _change(self, delta: Params, rate_sum: Any, control: Params) -> Params:
        """Option II: c_i+ - c_i = (w - y_K) / (K eta_l) - c, of a client or, of equal steps, in the mean."""
        # a line search that never moved has the sum 0, and delta is 0
        per = -1 / (jnp.maximum(rate_sum, 1e-12) if self._searches else rate_sum)
        return jax.tree.map(lambda d, c: (per * d - c).astype(c.dtype), delta, control)

    def update(self, server: ScaffoldServer, message: Any, cohort: Cohort) -> ScaffoldServer:
        # apply the inner update, and move c by |S|/N of the mean change
        inner = self.inner.update(server.inner, self.inner_part(message), cohort)
        change = self._found(message, cohort, server.control)
        return ScaffoldServer(inner, trees.axpy(cohort.size / cohort.population, change, server.control))

    def receive(
        self, broadcast: ScaffoldBroadcast, message: Any, client: ScaffoldClient
    ) -> tuple[Any, ScaffoldClient]:
        # decode the inner message; a control variate that is sent is unchanged
        received, followed = self.inner.receive(broadcast.inner, self.inner_part(message), client.inner)
        control = trees.add(client.control, self._found(message, broadcast, broadcast.control))
        return self._renewed(message, received), ScaffoldClient(followed, control)

    def _found(self, message: Any, at: Any, control: Params) -> Params:
        """c_i+ - c_i of a message, or the mean of a cohort: sent, or what follows of the client update."""
        if self.equal_steps is None:
            return message.control_delta
        rates = self.local.rate_sum(self.equal_steps, round_of(at))
        return self._change(client_update_of(message), rates, control)


@by_name("SCAFFOLD")
def SCAFFOLD(
    client_lr: Rate = 0.1,
    *,
    server_lr: Rate = 1.0,
    option: Literal["I", "II"] = "II",
    weighting: Weighting = "uniform",
    equal_steps: int | None = None,
    **client: Unpack[ClientOptions],
) -> ControlVariates:
    """SCAFFOLD (Karimireddy et al. 2020): FedAvg with control variates that correct client drift.

        client:  y <- y - eta_l (g_i(y) - c_i + c), K times from w
                 option I:   c_i+ = grad f_i(w)           option II:  c_i+ = c_i - c + (w - y) / (K eta_l)
        server:  w <- w + eta_g mean (y - w),   c <- c + (1/N) sum over S of (c_i+ - c_i)

    Up: y - w and c_i+ - c_i (2 d numbers, or y - w alone where all clients take K steps) and the mean local loss.
    Down: w and c (2 d). Kept: c_i on each client (d).
    It is `ControlVariates(FedAvg(...))`; see there what clipping, momentum and weight decay act on.

    Args:
        client_lr: eta_l > 0, a number or a schedule by round. 0.1 is where to begin: the paper tunes it.
        server_lr: eta_g > 0, a number or a schedule by round (1, what all public code takes).
        option: II costs nothing; I one gradient of all of a client's examples a round. II is the experiments' choice.
        weighting: `uniform` (the paper's) or by `examples`.
        equal_steps: K, if all clients take as many local steps, for a deployment; `fs.run` finds out.
        **client: `client_momentum`, `weight_decay`, `clip_norm` of the clients' SGD, none by default (`client.SGD`).

    Returns:
        `ControlVariates(FedAvg(...), option=option)`.

    Raises:
        InvalidInput: a number out of its range, an unknown option or weighting.

    Reference: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning", ICML 2020,
    Algorithm 1.
    """
    inner = FedAvg(client_lr, server_lr=server_lr, weighting=weighting, **client)
    return ControlVariates(inner, option=option, weighting=weighting, equal_steps=equal_steps)
