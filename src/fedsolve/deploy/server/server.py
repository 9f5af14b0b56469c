"""The server's app on Flower: any method, on a real federation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, Protocol

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import FedsolveError, InvalidInput
from fedsolve.core.types import Params
from fedsolve.deploy.analysis_job import answer_questions
from fedsolve.deploy.evaluation_job import (
    ANALYSIS,
    EVALUATE,
    STATISTICS,
    Job,
    evaluate_model,
    evaluation_settings,
)
from fedsolve.deploy.run_log import end_in_one_line, say
from fedsolve.deploy.server.serve import Deployment, serve, with_initial
from fedsolve.deploy.server.settings import Settings, shows_fields
from fedsolve.deploy.signature import check_model

P = ParamSpec("P")
AlgorithmOrMaker = Algorithm | Callable[[Mapping[str, Any]], Algorithm]
"""A method, or a function from a run's configuration to it."""


class _ServerAppOf(Protocol[P]):
    """`server_app` as type checkers see it: with the options of `Settings`, of their types."""

    def __call__(
        self, algorithm: AlgorithmOrMaker, params: Params, *args: P.args, **options: P.kwargs
    ) -> ServerApp: ...


def _with_options_of(options: Callable[P, object]) -> Callable[[Callable[..., ServerApp]], _ServerAppOf[P]]:
    return shows_fields(options)


@_with_options_of(Settings)
def server_app(
    algorithm: Algorithm | Callable[[Mapping[str, Any]], Algorithm], params: Params, **options: Any
) -> ServerApp:
    """Make Flower's server app for a method.

    The method runs exactly as in a simulation with the same seed: cohorts are drawn over the clients' own numbers,
    replies are checked one by one and reduced in the order of those numbers. After every round the state is saved in
    `out`, from which `resume` goes on with the same bits. `out` ends with the record, the model and a page.

    All but `algorithm`, `params`, `sampling`, `buffers`, `evaluate`, `schema`, `callbacks` and `label` may be given
    anew by the run's configuration, where `_` is written `-` and infinity stands for None of `grace` and `norm_bound`:
    `flwr run . --run-config "rounds=5 round-seconds=60.0 resume=true"`. With `job="evaluate" model="run"` the connected
    clients measure a saved model once, and with `job="statistics" columns="age, smoker"` they are asked for sums of
    their columns; nothing is trained then (`fedsolve federate evaluate`, `statistics`; `glm` and others for a model).

    Args:
        algorithm: the method, such as `FedDuAdam(client_lr=0.1)`, or a function from the run's configuration to it.
        params: the initial model, a pytree of floating-point arrays as the clients' oracles have it
            (`torch_parameters(module)` of a module); its type, float32 or float64, is the run's.
        **options: the words of each.

    Returns:
        The app that `flwr run` starts; a run of it ends with what is in `out`.

    Raises:
        InvalidInput: an argument that is unknown, out of its range, or does not fit the others. While it runs:
            `Unavailable`, too few clients by a deadline; `Diverged`, the model would not be finite after round upon
            round.
    """
    if not isinstance(algorithm, Algorithm) and not callable(algorithm):
        raise InvalidInput(f"algorithm must be one such as FedAvg(client_lr=0.1), not {algorithm!r}")
    check_model(params)
    settings, app = Settings(**options), ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        end_in_one_line()
        _start(grid, algorithm, params, settings, context.run_config)

    return app


def _start(
    grid: Grid, algorithm: AlgorithmOrMaker, params: Params, settings: Settings, config: Mapping[str, Any]
) -> None:
    # What a run is for, by its configuration: training, or a job without; what cannot be is said on the server too.
    deployment: Deployment | None = None
    try:
        job, settings = Job.of(config), settings.overridden(config)
        if job.name not in (STATISTICS, ANALYSIS):  # of data alone
            method = algorithm if isinstance(algorithm, Algorithm) else algorithm(config)
            given = evaluation_settings(settings) if job.name == EVALUATE else settings
            if job.name != EVALUATE or method.traits.personal:  # a model that is measured comes with the job
                params, given = with_initial(params, given)
            deployment = Deployment.of(method, params, given, config)
    except FedsolveError as error:
        say(f"error: {error}")
        raise
    if deployment is None:
        answer_questions(grid, settings, job, config)
    elif job.name == EVALUATE:
        evaluate_model(grid, deployment, job)
    else:
        serve(grid, deployment)
