"""One run of a method on a federation, from its folder's checkpoint to its record, model and page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
from flwr.serverapp import Grid

from fedsolve.core.algorithm import SECRET_COHORT_NOTE, Algorithm, name_of
from fedsolve.core.errors import InvalidInput, trim_common_prefix
from fedsolve.core.sampling import Sampling
from fedsolve.core.types import Params
from fedsolve.deploy.asynchronous import BufferedCoordinator, BufferedRounds
from fedsolve.deploy.exchange import watched_engine
from fedsolve.deploy.host import return_freed_memory
from fedsolve.deploy.metrics import RunMetrics, metrics_server
from fedsolve.deploy.run_log import FAILED, reports_of, say, tell_failure
from fedsolve.deploy.secret_keys import SECRET_FILE, load_or_create_secret
from fedsolve.deploy.secure.rounds import SecureCoordinator, check_secure
from fedsolve.deploy.server.checkpoint import DeploymentCheckpoint
from fedsolve.deploy.server.coordinator import Coordinator, Federation, ReplyStore
from fedsolve.deploy.server.rounds import FederationLoop
from fedsolve.deploy.server.settings import Settings, check_buffered
from fedsolve.deploy.signature import signature
from fedsolve.engine.checks.methods import check_rates
from fedsolve.engine.feedback_schedules import rate_changes
from fedsolve.engine.identity import as_written, describe, digest
from fedsolve.engine.load import BEGAN, ORIGIN, START, kept_start, saved_model
from fedsolve.engine.loop import CompileClock, loop
from fedsolve.engine.record import EvaluationSetup
from fedsolve.engine.results import Result
from fedsolve.folders.run_folder import check_rounds, first_difference
from fedsolve.report.page import write_page
from fedsolve.results.callbacks import notify_ended
from fedsolve.results.clients import read_client_metrics
from fedsolve.results.history import History
from fedsolve.results.record_files import FEDERATION, write_model, write_record

_SCHEMA = "schema"
_LOSS = "training loss is the mean over the participants' local steps"
_SECRET = (
    f"{SECRET_COHORT_NOTE}: they follow from {SECRET_FILE}, which never leaves the server and is removed at the end; "
    "against those who see who is asked nothing is amplified, and sampling='none' counts on nothing"
)


@dataclass(frozen=True)
class Deployment:
    """What runs on a federation: the arguments of `server_app`, with what the run's configuration changed."""

    # Clients of a sum compare `run_config`, the configuration of Flower's run.

    algorithm: Algorithm
    params: Params
    settings: Settings
    sampling: Sampling
    run_config: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        params: Params,
        settings: Settings,
        run_config: Mapping[str, Any] = MappingProxyType({}),
    ) -> Deployment:
        # Before a folder is written or a site is asked: `serve` takes what has passed here.
        check_buffered(algorithm, settings)
        check_secure(algorithm, settings)
        sampling = settings.cohort_sampling(algorithm)
        check_rates(algorithm, settings.rounds)
        label = settings.label or name_of(algorithm)
        return cls(algorithm, params, dataclasses.replace(settings, label=label), sampling, run_config)

    @property
    def label(self) -> str:
        return self.settings.label or ""

    @property
    def folder(self) -> Path:
        return Path(self.settings.out)

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must share with the run that goes on from it."""
        return {
            "algorithm": describe(self.algorithm),
            "model": digest(signature(self.params) + describe(jax.tree.leaves(self.params))),
            "population": self.settings.population,
            "sampling": describe(self.sampling),
            "seed": self.settings.seed,
        }

    def coordinator(self, experiment: str) -> Coordinator:
        traits = self.algorithm.traits
        # A resumed run must draw the cohorts that it would have drawn.
        secret = load_or_create_secret(self.folder) if traits.secret_cohorts else None
        secure = SecureCoordinator if traits.secure_sums else Coordinator
        kind = BufferedCoordinator if traits.buffer else secure
        coordinator = kind(
            self.algorithm,
            self.params,
            Federation(self.settings.population, self.sampling, self.settings.seed, experiment, secret),
            buffers=dict(self.settings.buffers or {}),
            norm_bound=self.settings.norm_bound,
            max_share=self.settings.max_share,
            reply_store=ReplyStore(self.folder),
        )
        if isinstance(coordinator, SecureCoordinator):
            coordinator.run_config = self.run_config
        return coordinator


def with_initial(params: Params, settings: Settings) -> tuple[Params, Settings]:
    """The model of `initial` and the settings with its buffers; on resuming, the run's copy where that is gone."""
    if settings.initial is None:
        return params, settings
    path, here = Path(settings.initial), {} if settings.schema is None else settings.schema.parts
    if settings.resume and not path.exists():
        path = kept_start(settings.out) or path
    params, buffers, facts = saved_model(path, params, settings.buffers or {})
    # A file that says nothing of a schema is held against none.
    there = facts.get(_SCHEMA, here)
    if not isinstance(there, dict) or not all(isinstance(text, str) for text in there.values()):
        raise InvalidInput(f"{path} says of its schema what no schema is: give a model that fedsolve wrote")
    if here and (name := first_difference(there, here) or first_difference(here, there)):
        then, now = trim_common_prefix(there.get(name, "nothing"), here.get(name, "nothing"))
        raise InvalidInput(
            f"{path} was trained with another schema: its {name} was {then}, and is {now} here"
        )
    return params, dataclasses.replace(settings, buffers=buffers or None)


def serve(grid: Grid, deployment: Deployment) -> tuple[Params, History]:
    """Run a method on a grid; the final model and the record, both also in the run's folder."""
    folder, settings = deployment.folder, deployment.settings
    checkpoint: DeploymentCheckpoint | None = None
    try:
        with (
            metrics_server(settings.metrics_address, say) as publish,
            watched_engine(grid),
            DeploymentCheckpoint.at(
                folder, deployment.identity, deployment.label, settings.resume
            ) as checkpoint,
        ):
            # Of an attempt before this one, which goes on now.
            (folder / FAILED).unlink(missing_ok=True)
            if settings.initial and not settings.resume:
                write_model(folder / START, deployment.params, {ORIGIN: settings.initial}, settings.buffers)
            result = _run(grid, deployment, checkpoint, publish)
    except Exception as error:
        tell_failure(error, None if checkpoint is None else folder)
        notify_ended(settings.callbacks, None)
        raise
    notify_ended(settings.callbacks, result)
    return result.params, result.history


def _run(
    grid: Grid,
    deployment: Deployment,
    checkpoint: DeploymentCheckpoint,
    publish: Callable[[RunMetrics], None],
) -> Result:
    folder, settings = deployment.folder, deployment.settings
    return_freed_memory()
    is_secret = deployment.algorithm.traits.secret_cohorts
    coordinator = deployment.coordinator(checkpoint.experiment)
    recorder = checkpoint.restore(coordinator)
    check_rounds(f"the run in {folder}", coordinator.state.round, settings.rounds)
    setup = EvaluationSetup.of(settings.eval_every, deployment.algorithm, settings.callbacks)
    looked = checkpoint.changes_of(setup, settings.rounds)
    if checkpoint.notice:
        say(checkpoint.notice)
    if is_secret:
        say(_SECRET)
    say(f"experiment {checkpoint.experiment}, into {folder.absolute()}")
    # After the restore: reports go on from the rounds that are done.
    reports = reports_of(folder, deployment.label, settings.rounds, coordinator)
    publish(reports.metrics)
    kind = BufferedRounds if isinstance(coordinator, BufferedCoordinator) else FederationLoop
    # `result` asks for `rounds`: nobody calls it before they have begun.
    rounds = kind(grid, coordinator, settings, checkpoint, recorder, lambda: result(), reports)

    def result(ended: str = "") -> Result:
        notes = () if rounds.measures_loss else (_LOSS,)
        notes += (_SECRET,) if is_secret else ()
        notes += rounds.client_notes + tuple(looked)
        notes += rate_changes(deployment.algorithm, recorder.evaluations.arrays())
        notes += (ended,) if ended else ()
        notes += (BEGAN + Path(settings.initial).name,) if settings.initial else ()
        options = {**deployment.identity, **settings.configurable(), "experiment": checkpoint.experiment}
        options["algorithm"] = as_written(deployment.algorithm)
        for name in ("out", "metrics_address", "initial"):  # of this machine, and the record may be shown
            del options[name]
        if rounds.sites:
            options["sites"] = ", ".join(map(coordinator.names, range(settings.population)))
        history = recorder.history(deployment.label, FEDERATION, options, 0.0, notes)
        return Result(coordinator.model, history, dict(coordinator.state.buffers) or None)

    try:
        ended = loop(rounds, CompileClock(), interrupted=lambda: False)  # each round has been saved
    finally:
        reports.status()
    (folder / SECRET_FILE).unlink(missing_ok=True)  # of no use now, and the folder may be shown
    final = result(ended)
    about = {} if settings.schema is None else {_SCHEMA: settings.schema.parts}
    write_record(folder, final.history, final.params, coordinator.state.buffers, about)
    # Under secure sums no client's own metrics are known.
    by_client = settings.client_metrics and not deployment.algorithm.traits.secure_sums
    measured = read_client_metrics(folder) if by_client else {}
    last = measured[max(measured)] if measured else None
    write_page(
        folder / "page.html", [final.history], title=f"{deployment.label} on a federation", clients=last
    )
    return final
