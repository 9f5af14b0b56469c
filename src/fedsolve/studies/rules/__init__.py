"""Rules that judge a statement, and what a rule of one's own is made of: intervals, differences, their words."""

from fedsolve.studies.intervals import Interval, beyond, decided, interval, intervals, listed
from fedsolve.studies.rules.across import better_in_each
from fedsolve.studies.rules.comparisons import (
    Difference,
    Rule,
    at_least_as_good,
    better,
    better_than_all,
    close,
    difference,
    each_better,
    grade,
    judged,
    provisional,
    rule,
    shown_final,
    together,
)
from fedsolve.studies.rules.ranks import Ranked, Ranks, ends, rank, ranks_above
from fedsolve.studies.rules.times import sooner
from fedsolve.studies.rules.views import at_round, by_metric, in_decades

__all__ = [
    "Difference",
    "Interval",
    "Ranked",
    "Ranks",
    "Rule",
    "at_least_as_good",
    "at_round",
    "better",
    "better_in_each",
    "better_than_all",
    "beyond",
    "by_metric",
    "close",
    "decided",
    "difference",
    "each_better",
    "ends",
    "grade",
    "in_decades",
    "interval",
    "intervals",
    "judged",
    "listed",
    "provisional",
    "rank",
    "ranks_above",
    "rule",
    "shown_final",
    "sooner",
    "together",
]
