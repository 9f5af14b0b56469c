"""A saved model in place of a run's first one, if everything that its files say fits the app's model and method."""

from __future__ import annotations

import secrets
from pathlib import Path

import jax
import numpy as np

from fedsolve.core.algorithm import name_of
from fedsolve.core.checks import check_same
from fedsolve.core.errors import InvalidInput, from_where_they_differ
from fedsolve.core.sampling import Uniform
from fedsolve.deploy.checkpoint import DeploymentCheckpoint
from fedsolve.deploy.run_log import say
from fedsolve.deploy.secure_rounds.secure_coordinator import SecureCoordinator
from fedsolve.deploy.server.coordinator import Coordinator
from fedsolve.deploy.server.federation import Federation
from fedsolve.deploy.server.serve import Deployment
from fedsolve.folders.run_folder import DEPLOYMENT, RunFolder, first_difference
from fedsolve.folders.store import read_manifest
from fedsolve.methods.secure.secure import Secure
from fedsolve.methods.server.sgd import FedAvg
from fedsolve.results.record_files import MODEL, like, read_history, read_model


def saved_coordinator(deployment: Deployment, path: Path) -> tuple[Coordinator, int]:
    """A coordinator that has the saved model, and how many rounds it was trained for, 0 where no file says so.

    Nothing is written: the folder may be that of a run that goes on.

    Args:
        deployment: what the app would train.
        path: the folder of a run on a federation, whose clients' personal models are then measured too; or that of a
            simulation, or a model's file.

    Raises:
        InvalidInput: a file is missing, damaged or not fedsolve's; another method, population, parameter, shape or
            type than the app's; numbers that are not finite; a method whose clients have personal models of a run, and
            no such run.
    """
    if not path.exists():
        raise InvalidInput(
            f"model = {str(path)!r}: there is no such file or folder where the server app runs"
        )
    identity = _run_identity(deployment, path if path.is_dir() else path.parent)
    if identity is not None and path.is_dir():
        return _of_run(deployment, path, identity)
    if deployment.algorithm.traits.personal:
        raise InvalidInput(
            f"{name_of(deployment.algorithm)} has personal models on the clients, and {path} is no folder of a run: "
            "give that of the run on this federation"
        )
    history = read_history(path) if path.is_dir() else None
    rounds = 0 if history is None else int(history.evaluations["round"][-1])
    return _of_file(deployment, path / MODEL if path.is_dir() else path), rounds


def _run_identity(deployment: Deployment, folder: Path) -> dict[str, str] | None:
    """What the app shares with the run on a federation in a folder; None if there is no such run.

    Raises:
        InvalidInput: the run has another method or population, or first model where clients' own began with it.
    """
    if not (folder / DEPLOYMENT.file).exists():
        return None
    manifest = read_manifest(folder / DEPLOYMENT.file)
    if "experiment" not in manifest:  # a simulation's
        return None
    names = ["algorithm", "population", *(["model"] if deployment.algorithm.traits.personal else [])]
    there, here = manifest["identity"], {name: deployment.identity[name] for name in names}
    if (name := first_difference(there, here)) is not None:
        then, now = from_where_they_differ(str(there.get(name)), str(here[name]))
        raise InvalidInput(
            f"the run in {folder} has {name} = {then}, and this app {now}: repeat what that run's configuration "
            "changed, such as method"
        )
    return here


def _of_run(deployment: Deployment, path: Path, identity: dict[str, str]) -> tuple[Coordinator, int]:
    """The coordinator of a run as its newest checkpoint left it."""
    checkpoint = DeploymentCheckpoint(RunFolder.seen(path, DEPLOYMENT, identity), deployment.label)
    coordinator = deployment.coordinator(checkpoint.experiment)
    checkpoint.restore(coordinator)
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


def _of_file(deployment: Deployment, path: Path) -> Coordinator:
    """The coordinator of a method that leaves a model as it is, around the one in a file."""
    arrays, beside = read_model(path)
    params = like(arrays, deployment.params, str(path))
    known = dict(deployment.settings.buffers or {})
    buffers = dict(beside or {})
    check_same("buffer", {n: b.shape for n, b in buffers.items()}, {n: b.shape for n, b in known.items()})
    wanted = [np.asarray(leaf).dtype for leaf in [*jax.tree.leaves(deployment.params), *known.values()]]
    given = [np.asarray(leaf) for leaf in [*jax.tree.leaves(params), *(buffers[name] for name in known)]]
    for array, dtype in zip(given, wanted, strict=True):
        if array.dtype != dtype:
            raise InvalidInput(f"{path} has numbers of type {array.dtype}, and the app's model {dtype}")
        if not np.isfinite(array).all():
            raise InvalidInput(f"{path} has numbers that are not finite: that model cannot be evaluated")
    settings = deployment.settings
    population, method = settings.population, FedAvg(1.0, weighting="uniform")
    federation = Federation(population, Uniform(population), settings.seed, _new_experiment())
    if deployment.algorithm.traits.secure_sums:
        return SecureCoordinator(Secure(method, bound=1.0, max_clients=population), params, federation)
    return Coordinator(method, params, federation, buffers={name: buffers[name] for name in known})


def _new_experiment() -> str:
    return f"evaluation-{secrets.token_hex(4)}"
