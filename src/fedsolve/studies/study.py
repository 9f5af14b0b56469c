"""What a study is, as data: problems, methods with the paper's rates and a grid around them, statements, pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from fedsolve.studies.cells import Cells
from fedsolve.studies.experiment import Verdict
from fedsolve.studies.problem import Method, Problem

if TYPE_CHECKING:
    from matplotlib.figure import Figure

QUICK_ROUNDS, QUICK_METHODS, QUICK_SEEDS = 2, 3, (0, 1)
"""Of the quick form: rounds, how many methods of those there are, and seeds."""


@dataclass(frozen=True)
class Decision:
    """What a rule found: our numbers in words, the verdict, why, and what makes it provisional if anything does."""

    ours: str
    verdict: Verdict
    reason: str = ""
    provisional: str = ""


@dataclass(frozen=True)
class Statement:
    """What is said of the methods, and the rule that decides it.

    Attributes:
        says: in one sentence.
        theirs: the table or figure and what stands there; "" for a statement that the paper does not make.
        decide: the rule, one of `fedsolve.studies.rules.comparisons`.
        only_full: whether it is of problems or methods that the full form alone runs.
    """

    says: str
    theirs: str
    decide: Callable[[Cells], Decision]
    only_full: bool = False


class Picture(Protocol):
    """What draws a study's results."""

    def draw(self, study: Study, cells: Cells) -> tuple[str, Figure]:
        """Its caption and the figure."""
        ...


@dataclass(frozen=True)
class Study:
    """A comparison of methods on problems, in the size that a CPU finishes and in the paper's.

    Attributes:
        title, summary: of its page, and one line for `fedsolve list experiments`.
        paper: key of the citation, "" for a study of one's own.
        problems: in the size that two cores finish, by name.
        full: in the paper's size, by the same or other names; empty where `problems` has it.
        quick: a tiny problem without the data folder, for `--quick`; None for the first of `problems`.
        methods: by name, or a function from a problem's name to them where their settings differ by problem.
        seeds: all of them are shown.
        statements, pictures: what is claimed and drawn.
        theory: what is shown beside the runs, paragraphs with a blank line between them; "" for none.
        deviations: where it departs from the paper, one sentence each.
        cost: what the full size would take, and how that was reckoned; "" where there is none.
        minutes: what `problems` took on 2 cores, None where that was not measured.
        needs_data: whether it reads the data folder.
        tuned_on: the seed that grids run on, None for the first of `seeds`.
    """

    title: str
    summary: str
    problems: Mapping[str, Problem]
    methods: Mapping[str, Method] | Callable[[str], Mapping[str, Method]]
    seeds: tuple[int, ...]
    statements: tuple[Statement, ...]
    pictures: Mapping[str, Picture]
    paper: str = ""
    quick: Problem | None = None
    deviations: tuple[str, ...] = ()
    cost: str = ""
    theory: str = ""
    full: Mapping[str, Problem] = field(default_factory=dict)
    minutes: float | None = None
    needs_data: bool = True
    tuned_on: int | None = None

    @property
    def tuning_seed(self) -> int:
        return self.seeds[0] if self.tuned_on is None else self.tuned_on

    @property
    def seeds_in_words(self) -> str:
        """Which seeds are shown, as captions say it."""
        own_data = all(problem.data_by_seed for problem in self.problems.values())
        return f"Seeds {', '.join(map(str, self.seeds))}{', each with data of its own' if own_data else ''}."

    @property
    def evaluated(self) -> tuple[Statement, ...]:
        """The statements of this form: in one beside which there is a full one, not those of that alone."""
        return tuple(statement for statement in self.statements if not (self.full and statement.only_full))

    def methods_of(self, problem: str) -> Mapping[str, Method]:
        every = self.methods(problem) if callable(self.methods) else self.methods
        chosen = self.problems[problem].methods if problem in self.problems else ()
        return {name: every[name] for name in chosen} if chosen else every

    def at_full_size(self) -> Study:
        return replace(self, problems=self.full, full={}, minutes=None)

    def at_quick_size(self) -> Study:
        """Two rounds of a few methods, each at one setting, on a tiny problem: to see that it works."""
        first = next(iter(self.problems))
        few = list(self.methods_of(first).items())[:QUICK_METHODS]
        tried = {}
        for name, m in few:
            one = m.published or {axis: values[0] for axis, values in m.grid.items()}
            short = {k: v for k, v in m.options.items() if k not in ("rounds", "eval_every")}
            tried[name] = replace(m, published=one, grid={}, options=short)
        tiny = self.quick or self.problems[first]
        options = {**tiny.options, "rounds": QUICK_ROUNDS, "eval_every": 1}
        select = "train_loss" if tiny.tuning else tiny.select  # one setting each: nothing is selected
        quick = replace(tiny, options=options, tuning={}, published={}, select=select, methods=())
        return replace(
            self, problems={"quick": quick}, full={}, methods=tried, seeds=QUICK_SEEDS, statements=(),
            needs_data=False,
        )  # fmt: skip
