"""The options of a run besides its method and task, each defined once with its meaning, range and default.

`fedsolve.run`, `fedsolve.sweep`, the section `[run]` of a configuration and the options of the command line are made
from the fields of `RunOptions`. To add an option, add it here, where it acts, and in the docs. Nothing here imports
JAX, so that the command line's help does not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict, cast

from fedsolve.config.signatures import About, P, T, about_of, option, options_class, shows, with_lines
from fedsolve.core.errors import SEED_BITS, InvalidInput, nearest

if TYPE_CHECKING:
    from fedsolve.core.fleets import Fleet
    from fedsolve.core.sampling import Sampling
    from fedsolve.tasks.task import Task

_EVALUATIONS = 50  # of a run, about, where eval_every is not given


def _option(text: str, otherwise: str = "", *, default: Any = None, **about: Any) -> Any:
    return option(text, default=default, otherwise=otherwise, **about)


FLEETS = ("even", "half-normal", "stragglers", "diurnal")
"""Names of `fedsolve.systems.PROFILES`, which needs NumPy: the command line's help does not wait for it."""
_PARTICIPATION = About(
    "probability with which each client takes part in a round, in place of a fixed number of clients",
    share=True,
    instead_of="clients_per_round",
)


@options_class
class RunOptions:
    """All options of a run besides its method and its task.

    Attributes:
        **options: each field's own words.

    Raises:
        InvalidInput: a value out of its range, or two options of which one replaces the other.
    """

    rounds: int = _option("number of communication rounds", default=MISSING, least=1, written_default=100)
    clients_per_round: int | None = _option(
        "number of clients in a round, drawn uniformly without replacement", "all clients", least=1
    )
    sampling: Sampling | None = _option(
        "client sampling (`fedsolve.sampling`), in place of `clients_per_round`",
        instead_of="clients_per_round",
        written=("participation", _PARTICIPATION),
    )
    seed: int = _option(
        "random seed of the initial model, cohorts and shuffles; a seed gives the same bits on the same machine",
        least=0,
        bits=SEED_BITS,
        swept=False,
        default=0,
    )
    batch_size: int | Literal["full"] | None = _option(
        "examples in a local step, or 'full' for all examples of the client",
        "the task's",
        least=1,
        words=("full",),
    )
    microbatches: int | None = _option(
        "number of parts in which a local step works through its examples, one after another: the same gradient "
        "with less memory. `batch_size` is a multiple of it; random draws, as of dropout, are each part's own",
        "the task's",
        least=1,
    )
    epochs: int | None = _option(
        "local epochs: passes over a client's examples in a round", "the task's", least=1
    )
    local_steps: int | None = _option(
        "local steps of each client in a round, in place of `epochs`",
        "the task's",
        least=1,
        instead_of="epochs",
    )
    eval_every: int | None = _option(
        "number of rounds between evaluations", f"1/{_EVALUATIONS} of the rounds", least=1
    )
    dtype: Literal["float32", "float64"] = _option(
        "floating-point type of the whole run, float32 or float64",
        words=("float32", "float64"),
        default="float32",
    )
    matmul_dtype: Literal["bfloat16"] | None = _option(
        "type to which the operands of matrix products and convolutions are rounded in local training: bfloat16. "
        "Sums and all other numbers are float32",
        "the run's type",
        words=("bfloat16",),
    )
    chunk: int | None = _option(
        "number of clients trained in parallel on a device", "chosen by the size of a local step", least=1
    )
    devices: int | None = _option(
        "number of devices that share each cohort",
        "1, or each core of a CPU where clients train one after another, or all devices of several processes",
        least=1,
        swept=False,
    )
    mesh: Mapping[str, int] | None = _option(
        "device mesh, in place of `devices`. With {'clients': 4, 'model': 2} four pairs of devices share each "
        "cohort, and the arrays of a model are sharded over a pair",
        instead_of="devices",
        axes=("clients", "model"),
        swept=False,
    )
    start: Any = _option(
        "model to begin with: the folder of a finished run, or in Python also a result or parameters. Names, "
        "shapes, columns and digits must fit the task; the rest of that run plays no part",
        "the task's initial model",
        flag="--from",
    )
    systems: Fleet | str | None = _option(
        "device profiles for simulated time: a name (the seed draws the profiles) or a `fedsolve.systems.Fleet`",
        "no simulated time",
        words=FLEETS,
        objects=True,
    )
    quorum: int | None = _option(
        "number of client updates after which a round ends; later ones are dropped. Needs `systems`",
        "all",
        least=1,
    )
    deadline: float | None = _option(
        "simulated seconds after which a round ends; later client updates are dropped. Needs `systems`",
        "none",
        positive=True,
    )
    residency: Literal["device", "stream"] | None = _option(
        "where clients' examples and states are stored: all on the 'device', or streamed ('stream') from the host "
        "or disk as they are needed. Results have the same bits",
        "chosen by their size",
        words=("device", "stream"),
        swept=False,
    )

    def __post_init__(self) -> None:
        for given in fields(self):
            value = getattr(self, given.name)
            if value is None and given.default is None:
                continue
            about = about_of(given)
            object.__setattr__(self, given.name, about.check(given.name, value))
            if about.instead_of and getattr(self, about.instead_of) is not None:
                raise InvalidInput(f"give {about.instead_of} or {given.name}, not both")
        for name in ("quorum", "deadline"):
            if getattr(self, name) is not None and self.systems is None:
                raise InvalidInput(
                    f"{name} = {getattr(self, name)} needs simulated time: give systems, such as systems = 'stragglers'"
                )
        if self.matmul_dtype is not None and self.dtype == "float64":
            raise InvalidInput(
                f"matmul_dtype = {self.matmul_dtype!r} in a run of dtype = 'float64': products would keep 8 bits of "
                "53; leave it out, or run in float32"
            )

    def keywords(self) -> RunKeywords:
        return cast(RunKeywords, dict(vars(self)))

    def with_defaults(self, task: Task) -> RunOptions:
        """The same with what the task and the number of rounds decide: local work and `eval_every` are given."""
        work = {"epochs": self.epochs, "local_steps": self.local_steps}
        if self.epochs is None and self.local_steps is None:
            work = {"epochs": task.epochs, "local_steps": task.local_steps}
        every = max(1, round(self.rounds / _EVALUATIONS)) if self.eval_every is None else self.eval_every
        work["microbatches"] = self.microbatches or task.microbatches
        return replace(
            self, **work, batch_size=self.batch_size or task.batch_size or "full", eval_every=every
        )

    @property
    def local_work(self) -> dict[str, Any]:
        """A client's local work, as `fedsolve.engine.compute.clients.local_work` takes it: no batch size for 'full'."""
        batch = self.batch_size if isinstance(self.batch_size, int) else None
        work = {"batch_size": batch, "epochs": self.epochs, "local_steps": self.local_steps}
        return work | {"microbatches": self.microbatches or 1}


class SweepKeywords(TypedDict, total=False):
    """The options that a sweep takes too, as type checkers see them; `RunOptions` says what they are."""

    rounds: Required[int]
    clients_per_round: int | None
    sampling: Sampling | None
    batch_size: int | Literal["full"] | None
    microbatches: int | None
    epochs: int | None
    local_steps: int | None
    eval_every: int | None
    dtype: Literal["float32", "float64"]
    matmul_dtype: Literal["bfloat16"] | None
    chunk: int | None
    start: Any
    systems: Fleet | str | None
    quorum: int | None
    deadline: float | None


class RunKeywords(SweepKeywords, total=False):
    """The options of one run, as type checkers see them; `RunOptions` says what they are."""

    seed: int
    devices: int | None
    mesh: Mapping[str, int] | None
    residency: Literal["device", "stream"] | None


@dataclass(frozen=True)
class WrittenOption:
    """An option as a configuration and the command line have it; its default is None if another decides."""

    name: str
    default: Any
    about: About


def written_options() -> tuple[WrittenOption, ...]:
    """The options in the order of `RunOptions`, each as text can give it."""
    written = []
    for each in fields(RunOptions):
        about = about_of(each)
        name, about = about.written or (each.name, about)
        default = about.written_default if each.default is MISSING else each.default
        written.append(WrittenOption(name, default, about))
    return tuple(written)


def exclusive_options() -> tuple[tuple[str, str], ...]:
    """Pairs of written options of which one at most is given."""
    return tuple((o.about.instead_of, o.name) for o in written_options() if o.about.instead_of)


def shows_options(
    *, swept: bool, renamed: Mapping[str, str] = MappingProxyType({})
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Put the options in the place of `**options`: in the signature, in the docstring, and in what is refused."""
    # the docstring's line that begins with `**options` becomes a line an option
    # swept: leave out what a sweep does not take
    # renamed: former name -> name of a keyword; the former is refused with the other

    def unknown(function: str, name: str, known: Iterable[str]) -> Exception:
        if name in renamed:
            return InvalidInput(f"{name} is called {renamed[name]} now: give {renamed[name]}")
        near = nearest(name, known)
        hint = f": did you mean '{near}'?" if near else ""
        return TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")

    return shows([f for f in fields(RunOptions) if about_of(f).swept or not swept], unknown)


RunOptions.__doc__ = with_lines(RunOptions.__doc__ or "", list(fields(RunOptions)))
