"""The job `evaluate`: the connected clients measure a saved model once. Nothing on them changes."""

from __future__ import annotations

import dataclasses
import shutil
import time
from functools import partial
from pathlib import Path

from flwr.serverapp import Grid

from fedsolve.core.errors import InvalidInput, Unavailable
from fedsolve.deploy.jobs.job import Job, job_folder
from fedsolve.deploy.jobs.saved_model import saved_coordinator
from fedsolve.deploy.monitoring.client_status import ClientStatuses
from fedsolve.deploy.nodes.client_registry import ClientRegistry
from fedsolve.deploy.nodes.node_bindings import BINDINGS, NodeBindings
from fedsolve.deploy.nodes.transport import watched_engine
from fedsolve.deploy.run_log import save_client_metrics, say
from fedsolve.deploy.secure_rounds.secure_coordinator import SecureCoordinator
from fedsolve.deploy.secure_rounds.server_keys import KEYS_FILE, ServerKeys
from fedsolve.deploy.secure_rounds.summed_evaluation import SummedEvaluation
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.evaluation import ClientEvaluation, Evaluation
from fedsolve.deploy.server.evaluation_result import MEASURED
from fedsolve.deploy.server.serve import Deployment
from fedsolve.deploy.server.settings import Settings
from fedsolve.engine.records.record import Recorder
from fedsolve.report.page import write_page
from fedsolve.results.clients import CLIENT_METRICS, read_client_metrics
from fedsolve.results.history import History
from fedsolve.results.record_files import FEDERATION, write_record


def evaluation_settings(settings: Settings) -> Settings:
    """The settings of an evaluation: the loss is measured where no metrics are named, and nothing is called back."""
    return dataclasses.replace(settings, client_metrics=settings.client_metrics or ("loss",), callbacks=())


def evaluate_model(grid: Grid, deployment: Deployment, job: Job) -> History:
    """Evaluate a saved model; a record of one evaluation, also in the run's folder, with each client's metrics.

    Args:
        grid: Flower's grid.
        deployment: what the app would train, with `evaluation_settings`.
        job: it names the model.

    Raises:
        InvalidInput: the folder or the model cannot be used, or no client can measure what all are asked.
        Unavailable: too few clients, or none that answers.
    """
    with job_folder(deployment.folder), watched_engine(grid):
        begun = time.perf_counter()
        coordinator, rounds = saved_coordinator(deployment, job.model)
        metrics = _measured(grid, deployment, coordinator, job.model)
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


def _measured(grid: Grid, deployment: Deployment, coordinator: Coordinator, model: Path) -> dict[str, float]:
    """The metrics of the coordinator's model, on the clients that are connected and on the server."""
    folder, settings = deployment.folder, deployment.settings
    if (bound := model / BINDINGS).is_file():  # a number belongs to the node that had it in that run
        shutil.copyfile(bound, folder / BINDINGS)
    clients = ClientStatuses(settings.population)
    registry = ClientRegistry(
        grid,
        settings.population,
        coordinator.signature,
        NodeBindings(folder / BINDINGS, coordinator.experiment),
        settings.takeover,
        clients,
        say,
    )
    coordinator.names = registry.names
    registry.wait_for_quorum(settings.quorum or settings.population, settings.connect_seconds)
    save = partial(save_client_metrics, folder / CLIENT_METRICS)
    kind: type[ClientEvaluation] = ClientEvaluation
    if isinstance(coordinator, SecureCoordinator):
        kind, seconds = SummedEvaluation, settings.round_seconds
        keys = ServerKeys(folder / KEYS_FILE, grid, registry, coordinator.experiment, seconds, say)
        keys.load_or_enrol(settings.population, settings.connect_seconds)
        coordinator.keys = keys
    asked = kind(grid, coordinator, settings, registry, dict, save, say)
    metrics = Evaluation(coordinator, settings, asked).metrics(is_first=True)
    if not metrics[MEASURED]:
        raise Unavailable("no client measured the model: the log says why")
    return metrics


def _write(folder: Path, history: History, coordinator: Coordinator) -> None:
    """The record, the model and the page, as a run has them."""
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
