"""The server's app on Flower: any method, on a real federation."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedsolve.algorithm import Algorithm, name_of
from fedsolve.deploy.coordinator import Coordinator
from fedsolve.deploy.keeper import Keeper
from fedsolve.deploy.keys import COHORTS, kept_secret
from fedsolve.deploy.message import form
from fedsolve.deploy.policy import Policy
from fedsolve.deploy.service import Evaluate, Service
from fedsolve.engine.cohorts import Sampling, Uniform
from fedsolve.engine.identity import describe, digest
from fedsolve.errors import FedsolveError, InvalidInput, check_range, unknown
from fedsolve.report.history import History
from fedsolve.report.page import write_page
from fedsolve.report.record_files import write_record
from fedsolve.types import Params
from fedsolve.wrappers.accounting import ASSUMED

ROUNDS = "rounds.jsonl"
"""One line a round, written as the run goes."""
_LOSS = "training loss is the mean over the participants' local steps"
_SECRET = (
    f"{ASSUMED}: they follow from {COHORTS}, which never leaves the server and is removed at the end; against those "
    "who see who is asked nothing is amplified, and sampling='none' counts on nothing"
)
FAILED = "failed.txt"
"""Why a run ended early, in one line."""


@dataclass(frozen=True)
class Settings:
    """How a method runs on a federation; see `server_app`."""

    rounds: int
    population: int
    clients_per_round: int | None = None
    seed: int = 0
    out: str = "fedsolve-run"
    resume: bool = False
    eval_every: int = 1
    quorum: int | None = None
    connect_seconds: float = 120.0
    round_seconds: float = 600.0
    min_replies: int | None = None
    shortfall: Literal["repeat", "skip"] = "repeat"
    repeats: int = 3
    norm_bound: float | None = None

    def __post_init__(self) -> None:
        for name, least in (("rounds", 1), ("population", 1), ("seed", 0), ("eval_every", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InvalidInput(f"{name} = {value!r} must be a whole number of at least {least}")
        if not isinstance(self.resume, bool):
            raise InvalidInput(f"resume = {self.resume!r} must be true or false")
        check_range("norm_bound", self.norm_bound, above=0)
        self.policy.check(self.population)

    @property
    def policy(self) -> Policy:
        """The part that deals with clients that are late, lost or wrong."""
        return Policy(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Policy)})

    def overridden(self, config: Mapping[str, Any]) -> Settings:
        """With what a run's configuration says instead; keys of other parts of the app are left alone.

        >>> Settings(rounds=5, population=3).overridden({"rounds": 9, "batch-size": 32}).rounds
        9
        """
        names = {f.name for f in dataclasses.fields(self)}
        given = {key.replace("-", "_"): value for key, value in config.items()}
        return dataclasses.replace(self, **{k: v for k, v in given.items() if k in names})


def server_app(
    algorithm: Algorithm | Callable[[Mapping[str, Any]], Algorithm],
    params: Params,
    *,
    rounds: int,
    population: int,
    sampling: Sampling | None = None,
    buffers: Mapping[str, np.ndarray] | None = None,
    evaluate: Evaluate | None = None,
    label: str | None = None,
    **settings: Any,
) -> ServerApp:
    """Flower's server app for a method.

    The method runs exactly as in a simulation with the same seed: cohorts are drawn over the clients' own numbers,
    replies are checked one by one and reduced in the order of those numbers. After every round the state is kept in
    `out`, from which `resume` goes on with the same bits. `out` ends with the record, the model and a page.

    Args:
        algorithm: the method, such as `FedDuAdam(client_lr=0.1)`, or a function from the run's configuration to it.
        params: the initial model, a pytree as the clients' oracles have it (`torch_parameters(module)` of a module).
        rounds: communication rounds in all.
        population: clients in all, numbered from 0 by their nodes' `client-id`.
        sampling: how cohorts are drawn; default `clients_per_round` uniformly, or all.
        buffers: what is averaged plainly beside the model, such as BatchNorm's statistics: `torch_buffers(module)`.
        evaluate: (model, buffers) -> metrics on the server, such as {"test_accuracy": 0.9}.
        label: the method's name in tables; default its name.
        settings: `clients_per_round`; `seed` (0); `out` (folder, "fedsolve-run"); `resume` (False); `eval_every` (1);
            `quorum` (clients that must be connected at the start, default all); `connect_seconds` (120) to wait for
            them and `round_seconds` (600) for a round's replies; `min_replies` that must count (half of the cohort),
            `shortfall` "repeat" or "skip" if fewer do, at most `repeats` (3) times; `norm_bound` of a message.
            Each may be given anew by the run's configuration: `flwr run . --run-config "rounds=5 resume=true"`.

    Raises:
        InvalidInput: settings that are unknown or do not fit. While it runs: `Unavailable`, too few clients by
            a deadline.
    """
    if not isinstance(algorithm, Algorithm) and not callable(algorithm):
        raise InvalidInput(f"algorithm must be one such as FedAvg(client_lr=0.1), not {algorithm!r}")
    known = [f.name for f in dataclasses.fields(Settings)]
    for name in settings:
        if name not in known:
            raise unknown("setting of server_app", name, known)
    made = Settings(rounds=rounds, population=population, **settings)
    if sampling is not None and made.clients_per_round is not None:
        raise InvalidInput("give clients_per_round or sampling, not both")
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        now = made.overridden(context.run_config)
        method = algorithm if isinstance(algorithm, Algorithm) else algorithm(context.run_config)
        serve(grid, method, params, now, sampling, dict(buffers or {}), evaluate, label)

    return app


def serve(
    grid: Grid,
    algorithm: Algorithm,
    params: Params,
    settings: Settings,
    sampling: Sampling | None = None,
    buffers: dict[str, np.ndarray] | None = None,
    evaluate: Evaluate | None = None,
    label: str | None = None,
) -> tuple[Params, History]:
    """Run a method on a grid; the final model and the record, both also in `settings.out`."""
    folder = Path(settings.out)
    label = label or name_of(algorithm)
    chosen = sampling or Uniform(settings.clients_per_round or settings.population)
    identity = {
        "algorithm": describe(algorithm),
        "model": digest(form(params) + describe(jax.tree.leaves(params))),
        "population": settings.population,
        "sampling": describe(chosen),
        "seed": settings.seed,
    }
    keeper: Keeper | None = None
    try:
        with Keeper.at(folder, identity, label, settings.resume) as keeper:
            (folder / FAILED).unlink(missing_ok=True)
            coordinator = Coordinator(
                algorithm,
                params,
                population=settings.population,
                sampling=chosen,
                seed=settings.seed,
                experiment=keeper.experiment,
                buffers=buffers,
                norm_bound=settings.norm_bound,
                secret=kept_secret(folder) if algorithm.secret_cohorts else None,
            )
            recorder = keeper.restore(coordinator)
            if algorithm.secret_cohorts:
                say(_SECRET)
            say(f"experiment {keeper.experiment}, into {folder.absolute()}")
            service = Service(
                grid, coordinator, settings.policy, keeper, recorder,
                rounds=settings.rounds, evaluate=evaluate, eval_every=settings.eval_every,
                report=_reporter(folder), log=say,
            )  # fmt: skip
            service.run()
            (folder / COHORTS).unlink(missing_ok=True)  # of no use now, and the folder may be shown
    except FedsolveError as error:
        if keeper is not None:  # else the folder belongs to another run
            (folder / FAILED).write_text(f"{error}\n", encoding="utf-8")
        say(f"error: {error}")
        raise
    shown = {**identity, **dataclasses.asdict(settings), "experiment": keeper.experiment}
    notes = () if service.measures_loss else (_LOSS,)
    notes += (_SECRET,) if algorithm.secret_cohorts else ()
    history = recorder.history(label, "federation", shown, 0.0, notes)
    write_record(folder, history, {"model": coordinator.model, "buffers": coordinator.held.buffers})
    write_page(folder / "page.html", [history], title=f"{label} on a federation")
    return coordinator.model, history


def say(line: str) -> None:
    """One line for the run's log."""
    print(f"fedsolve: {line}", flush=True)


def _reporter(folder: Path) -> Callable[[dict[str, Any]], None]:
    """Writes one line a round, in words to the log and as data to a file that others may follow."""

    def report(entry: dict[str, Any]) -> None:
        with open(folder / ROUNDS, "a", encoding="utf-8") as file:
            file.write(json.dumps({**entry, "time": time.time()}) + "\n")
        loss = "" if entry["loss"] is None else f", loss {entry['loss']:.4g}"
        say(
            f"round {entry['round']} of {entry['rounds']}: {entry['replies']} replies, {entry['rejected']} rejected, "
            f"{entry['bytes_up']:,} bytes up, {entry['bytes_down']:,} down{loss}, {entry['seconds']:.1f} s"
        )

    return report
