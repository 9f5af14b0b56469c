"""The server's app on Flower: any method, on a real federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import FedsolveError, InvalidInput
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import Params
from fedsolve.deploy.messages.strict_kwargs import named_arguments
from fedsolve.deploy.server.evaluation import Evaluate
from fedsolve.deploy.server.serve import Deployment, say, serve
from fedsolve.deploy.server.settings import Settings
from fedsolve.results.callbacks import Callback, check_callbacks


@named_arguments
def server_app(
    algorithm: Algorithm | Callable[[Mapping[str, Any]], Algorithm],
    params: Params,
    *,
    rounds: int,
    population: int,
    clients_per_round: int | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    buffers: Mapping[str, np.ndarray] | None = None,
    evaluate: Evaluate | None = None,
    eval_every: int = 1,
    client_metrics: str | Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    label: str | None = None,
    out: str = "fedsolve-run",
    resume: bool = False,
    quorum: int | None = None,
    connect_seconds: float = 120.0,
    round_seconds: float = 600.0,
    min_replies: int | None = None,
    grace: float | None = None,
    shortfall: Literal["repeat", "skip"] = "repeat",
    repeats: int = 3,
    over_select: float = 0.0,
    takeover: bool = True,
    norm_bound: float | None = None,
    max_share: float | None = None,
) -> ServerApp:
    """Flower's server app for a method.

    The method runs exactly as in a simulation with the same seed: cohorts are drawn over the clients' own numbers,
    replies are checked one by one and reduced in the order of those numbers. After every round the state is saved in
    `out`, from which `resume` goes on with the same bits. `out` ends with the record, the model and a page.

    All but `algorithm`, `params`, `sampling`, `buffers`, `evaluate`, `callbacks` and `label` may be given anew by the
    run's configuration, where `_` is written `-` and infinity stands for None of `grace` and `norm_bound`:
    `flwr run . --run-config "rounds=5 round-seconds=60.0 resume=true"`.

    Args:
        algorithm: the method, such as `FedDuAdam(client_lr=0.1)`, or a function from the run's configuration to it.
        params: the initial model, a pytree of floating-point arrays as the clients' oracles have it
            (`torch_parameters(module)` of a module); its type, float32 or float64, is the run's.
        rounds: communication rounds in all, >= 1.
        population: number of clients, >= 1; they are numbered from 0 by their nodes' `client-id`.
        clients_per_round: clients drawn uniformly for a round, 1 .. population; None for all.
        sampling: how cohorts are drawn otherwise, in place of `clients_per_round`.
        seed: >= 0; cohorts and the clients' shuffles follow from it.
        buffers: tensors that are averaged plainly beside the model, by name, such as BatchNorm's statistics:
            `torch_buffers(module)`.
        evaluate: (model, buffers) -> metrics on the server, such as {"test_accuracy": 0.9}; None for what clients
            measure, or the losses of their local steps.
        eval_every: rounds between evaluations, >= 1.
        client_metrics: what all connected clients measure the model by at each evaluation, on the examples that they
            train on and on those that they hold out: names of metrics of their oracles, such as ("loss", "accuracy") or
            "loss, accuracy"; () asks them nothing. Evaluations then have the columns that simulations have: train_NAME,
            client_NAME_mean, _p10, _p90 and _worst, validation_NAME, and `clients_measured`, how many answered. Refused
            with private methods.
        callbacks: called after each evaluation, as those of `fs.run`: `fs.callbacks.EarlyStopping`, `KeepBest`, with
            `client_metrics` also `EachClient` and `FineTuning`, functions of an `fs.callbacks.Evaluated`.
        label: the method's name in tables; default its own.
        out: the run's folder; a relative one is below the folder that the SuperLink was started in.
        resume: whether to go on from the checkpoint in `out`; without it a folder that holds a run is refused.
        quorum: clients that must be connected before the first round, 1 .. population; None for all.
        connect_seconds: seconds to wait for them, and in a round for those of its cohort, > 0.
        round_seconds: seconds to wait for the replies of a round, > 0.
        min_replies: replies that must count for a round to be used, 1 .. population; None for half of its cohort,
            rounded up, or what a robust reduction needs where that is more.
        grace: seconds that a round stays open once `min_replies` count, >= 0; None for all of `round_seconds`.
        shortfall: what becomes of a round of fewer: "repeat" asks again those whose reply is missing or did not
            count, "skip" leaves the model as it is and goes on to the next round.
        repeats: how often one round is asked for again before the run ends, >= 0.
        over_select: share of clients asked beyond `clients_per_round`, >= 0: of 0.3 three tenths more, of which the
            first replies count.
        takeover: whether a client's number may go to another node once the node that had it is no longer connected.
            A node without a key of its own (`--auth-supernode-private-key`) is another one after each start.
        norm_bound: largest Euclidean norm of a message that counts, > 0; None leaves out messages with a norm that is
            more than 100,000 times what is usual in this round and in earlier ones (docs/deployment.md).
        max_share: largest share of a round's weights that one client may have, in (0, 1], where a method weighs by
            examples; None for any.

    Returns:
        The app that `flwr run` starts; a run of it ends with what is in `out`.

    Raises:
        InvalidInput: an argument that is unknown, out of its range, or does not fit the others. While it runs:
            `Unavailable`, too few clients by a deadline; `Diverged`, the model would not be finite after round upon
            round.
    """
    if not isinstance(algorithm, Algorithm) and not callable(algorithm):
        raise InvalidInput(f"algorithm must be one such as FedAvg(client_lr=0.1), not {algorithm!r}")
    settings = Settings(
        rounds=rounds,
        population=population,
        clients_per_round=clients_per_round,
        seed=seed,
        out=out,
        resume=resume,
        eval_every=eval_every,
        client_metrics=client_metrics,
        quorum=quorum,
        connect_seconds=connect_seconds,
        round_seconds=round_seconds,
        min_replies=min_replies,
        grace=grace,
        shortfall=shortfall,
        repeats=repeats,
        over_select=over_select,
        takeover=takeover,
        norm_bound=norm_bound,
        max_share=max_share,
    )
    if sampling is not None and clients_per_round is not None:
        raise InvalidInput("give clients_per_round or sampling, not both")
    app, given = ServerApp(), {"sampling": sampling, "buffers": buffers, "evaluate": evaluate, "label": label}
    given["callbacks"] = check_callbacks(callbacks)

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, _deployment(algorithm, params, settings, context.run_config, given))

    return app


def _deployment(
    algorithm: Algorithm | Callable[[Mapping[str, Any]], Algorithm],
    params: Params,
    settings: Settings,
    config: Mapping[str, Any],
    given: Mapping[str, Any],
) -> Deployment:
    """What a run is, by its configuration; what cannot be is said on the server too."""
    try:
        method = algorithm if isinstance(algorithm, Algorithm) else algorithm(config)
        return Deployment.of(method, params, settings.overridden(config), **given)
    except FedsolveError as error:
        say(f"error: {error}")
        raise
