"""The job `evaluate`: the connected clients measure a saved model once. Nothing on them changes."""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from fedsolve.core.algorithm import name_of
from fedsolve.core.errors import InvalidInput, Unavailable, check_flag, check_known, trim_common_prefix
from fedsolve.core.sampling import Uniform
from fedsolve.data.column_replies import Request, parse_columns
from fedsolve.data.column_statistics import Minimum, check_summable
from fedsolve.deploy.exchange import watched_engine
from fedsolve.deploy.registry import BINDINGS, ClientRegistry
from fedsolve.deploy.run_log import FAILED, say, tell_failure
from fedsolve.deploy.secure.rounds import SecureCoordinator, SecureSession, SummedEvaluation
from fedsolve.deploy.server.checkpoint import DeploymentCheckpoint
from fedsolve.deploy.server.coordinator import Coordinator, Federation
from fedsolve.deploy.server.evaluation import MEASURED, ClientEvaluation, Evaluation, save_client_metrics
from fedsolve.deploy.server.serve import Deployment
from fedsolve.deploy.server.settings import Settings
from fedsolve.deploy.status import ClientStatuses
from fedsolve.engine.load import saved_model
from fedsolve.engine.record import Recorder
from fedsolve.folders.files import locked
from fedsolve.folders.run_folder import DEPLOYMENT, RunFolder, first_difference, read_manifest
from fedsolve.methods.secure.secure import Secure
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.report.page import write_page
from fedsolve.results.clients import CLIENT_METRICS, read_client_metrics
from fedsolve.results.history import History
from fedsolve.results.record_files import (
    ANALYSIS_FILE,
    FEDERATION,
    HISTORY,
    STATISTICS_FILE,
    read_history,
    write_record,
)

# What a run of an app is for, by its configuration, and the folder of one that trains nothing.


TRAIN, EVALUATE, STATISTICS, ANALYSIS = "train", "evaluate", "statistics", "analysis"
JOBS = (TRAIN, EVALUATE, STATISTICS, ANALYSIS)


@dataclass(frozen=True)
class Job:
    """What a run is for."""

    name: str
    # the folder of a run, or a model's file, to evaluate; a relative path starts where the SuperLink did
    model: Path
    # what is asked about each column, by name; all that clients allow if there are none
    columns: dict[str, Request]
    minimum: Minimum  # of clients and rows that a statistic must be of
    secure: bool = False  # whether statistics are sums of which the server sees no client's part
    analysis: str = ""  # as text, what an analysis is to find

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Job:
        """The job that a run's configuration names, with what it needs: `model`, `columns`, `analysis`, minimums."""
        name, model = config.get("job", TRAIN), config.get("model", "")
        check_known("job", name, JOBS)
        if name == EVALUATE and (not isinstance(model, str) or not model):
            raise InvalidInput(
                'job = "evaluate" needs model: the folder of a run, or the file of a model, such as model="run"'
            )
        least = Minimum()
        minimum = Minimum(config.get("min-clients", least.clients), config.get("min-rows", least.rows))
        secure = config.get("secure", False)
        check_flag("secure", secure)
        columns = parse_columns(config.get("columns", ""))
        if name == STATISTICS and secure:
            check_summable(columns)
        analysis = config.get("analysis", "")
        if name == ANALYSIS and (not isinstance(analysis, str) or not analysis):
            raise InvalidInput('job = "analysis" needs analysis: `fedsolve federate glm` and others set it')
        return cls(name, Path(model), columns, minimum, secure, str(analysis))


@contextlib.contextmanager
def job_folder(folder: Path) -> Iterator[None]:
    """Hold a new folder for a job; how the job fails is said in the log and in the folder."""
    is_ours = False
    try:
        with locked(folder):
            names = (DEPLOYMENT.file, DEPLOYMENT.previous, HISTORY, STATISTICS_FILE, ANALYSIS_FILE)
            if any((folder / name).exists() for name in names):
                raise InvalidInput(f"{folder} holds a run already: choose another folder (out)")
            is_ours = True
            (folder / FAILED).unlink(missing_ok=True)
            yield
    except Exception as error:
        tell_failure(error, folder if is_ours else None)
        raise


def evaluation_settings(settings: Settings) -> Settings:
    """The settings of an evaluation: the loss is measured where no metrics are named, and nothing is called back."""
    return dataclasses.replace(settings, client_metrics=settings.client_metrics or ("loss",), callbacks=())


def evaluate_model(grid: Grid, deployment: Deployment, job: Job) -> History:
    """Evaluate a saved model; a record of one evaluation, also in the run's folder, with each client's metrics."""
    with job_folder(deployment.folder), watched_engine(grid):
        begun = time.perf_counter()
        coordinator, rounds = saved_coordinator(deployment, job.model)
        metrics = _evaluate_on_clients(grid, deployment, coordinator, job.model)
        recorder = Recorder()
        recorder.seconds = time.perf_counter() - begun
        recorder.evaluation(rounds, recorder.seconds, {"train_loss": float("nan"), **metrics})
        population = deployment.settings.population
        settings = {
            "model": job.model.name,
            "population": population,
            "sites": ", ".join(map(coordinator.names, range(population))),
        }
        history = recorder.history(deployment.label, FEDERATION, settings, 0.0, ())
        _write(deployment.folder, history, coordinator)
        return history


def _evaluate_on_clients(
    grid: Grid, deployment: Deployment, coordinator: Coordinator, model: Path
) -> dict[str, float]:
    # The metrics of the coordinator's model, on the clients that are connected and on the server.
    folder, settings = deployment.folder, deployment.settings
    if (bound := model / BINDINGS).is_file():  # a number belongs to the node that had it in that run
        shutil.copyfile(bound, folder / BINDINGS)
    clients = ClientStatuses(settings.population)
    registry = ClientRegistry(grid, settings, coordinator.experiment, coordinator.signature, clients, say)
    coordinator.names = registry.names
    registry.wait_for_quorum(settings.quorum or settings.population, settings.connect_seconds)
    save = partial(save_client_metrics, folder / CLIENT_METRICS)
    kind: type[ClientEvaluation] = ClientEvaluation
    if isinstance(coordinator, SecureCoordinator):
        kind = SummedEvaluation
        session = SecureSession(grid, settings, registry, coordinator.experiment, say)
        session.load_or_enrol()
        coordinator.session, coordinator.run_config = session, deployment.run_config
    asked = kind(grid, coordinator, settings, registry, dict, save, say)
    metrics = Evaluation(coordinator, settings, asked).metrics(is_first=True)
    if not metrics[MEASURED]:
        raise Unavailable("no client measured the model: the log says why")
    return metrics


def _write(folder: Path, history: History, coordinator: Coordinator) -> None:
    write_record(folder, history, coordinator.model, dict(coordinator.state.buffers) or None)
    last = None
    if not isinstance(coordinator, SecureCoordinator):
        measured = read_client_metrics(folder)
        if not measured:
            raise InvalidInput("no client has examples to measure the model on")
        [last] = measured.values()
    write_page(
        folder / "page.html", [history], title=f"{history.label}: a saved model on its clients", clients=last
    )
    say(f"{history.words()}; in {folder.absolute()}")


def saved_coordinator(deployment: Deployment, path: Path) -> tuple[Coordinator, int]:
    """A coordinator that has the saved model, and how many rounds it was trained for, 0 where no file says so."""
    # The path is the folder of a run on a federation, whose clients' personal models are then measured too, or that
    # of a simulation, or a model's file. Nothing is written: the folder may be that of a run that goes on.
    if not path.exists():
        raise InvalidInput(
            f"model = {str(path)!r}: there is no such file or folder where the server app runs"
        )
    identity = _run_identity(deployment, path if path.is_dir() else path.parent)
    if identity is not None and path.is_dir():
        return _coordinator_of_run(deployment, path, identity)
    if deployment.algorithm.traits.personal:
        raise InvalidInput(
            f"{name_of(deployment.algorithm)} has personal models on the clients, and {path} is no folder of a run: "
            "give that of the run on this federation"
        )
    history = read_history(path) if path.is_dir() else None
    rounds = 0 if history is None else int(history.evaluations["round"][-1])
    return _coordinator_of_file(deployment, path), rounds


def _run_identity(deployment: Deployment, folder: Path) -> dict[str, str] | None:
    if not (folder / DEPLOYMENT.file).exists():
        return None
    manifest = read_manifest(folder / DEPLOYMENT.file)
    if "experiment" not in manifest:  # a simulation's
        return None
    names = ["algorithm", *(["model"] if deployment.algorithm.traits.personal else [])]
    there, here = manifest["identity"], {name: deployment.identity[name] for name in names}
    if (name := first_difference(there, here)) is not None:
        then, now = trim_common_prefix(str(there.get(name)), str(here[name]))
        raise InvalidInput(
            f"the run in {folder} has {name} = {then}, and this app {now}: repeat what that run's configuration "
            "changed, such as method"
        )
    return here


def _coordinator_of_run(
    deployment: Deployment, path: Path, identity: dict[str, str]
) -> tuple[Coordinator, int]:
    checkpoint = DeploymentCheckpoint(RunFolder.seen(path, DEPLOYMENT, identity), deployment.label)
    coordinator = deployment.coordinator(checkpoint.experiment)
    checkpoint.restore(coordinator, trains=False)
    if checkpoint.notice:
        say(checkpoint.notice)
    if deployment.algorithm.traits.secure_sums:  # the keys of that run are of an experiment that may go on
        if deployment.algorithm.traits.personal:
            raise InvalidInput(
                f"{name_of(deployment.algorithm)} has personal models, which clients measure while it runs: give "
                "server_app client_metrics"
            )
        coordinator.experiment = _new_experiment()
    return coordinator, coordinator.state.round


def _coordinator_of_file(deployment: Deployment, path: Path) -> Coordinator:
    params, buffers, _ = saved_model(path, deployment.params, deployment.settings.buffers or {})
    settings = deployment.settings
    population, method = settings.population, FedAvg(1.0, weighting="uniform")
    federation = Federation(population, Uniform(population), settings.seed, _new_experiment())
    if deployment.algorithm.traits.secure_sums:
        return SecureCoordinator(Secure(method, bound=1.0, max_clients=population), params, federation)
    return Coordinator(method, params, federation, buffers=buffers)


def _new_experiment() -> str:
    return f"evaluation-{secrets.token_hex(4)}"
