"""The tuning-free league: every method at its defaults on every ready task, ranked."""

from __future__ import annotations

from fedsolve.experiments import league_report
from fedsolve.experiments.league_ranks import PAR, League, ahead, at_par, by_tasks, failures, rank_table
from fedsolve.experiments.league_runs import ARENAS, LOOKS, METHODS, POPULAR, SEEDS, composite_league, league
from fedsolve.studies.experiment import Claim, Context, Experiment, Outcome, Verdict

PAR_METHODS = ("FedLiLS", "FedLiLS, max", "FedLiLU")
NO_SERVER_RATE = (
    ("FedDuAdam", "FedAdam", "takes no server rate and is no worse than the tuned rule it replaces"),
    ("FedDuAdagrad", "FedAdagrad", "takes no server rate and is no worse than the tuned rule it replaces"),
    ("FedExP", "FedAvg", "speeds FedAvg up at the same client rate"),
)
"""Pairs: the first sets the server's step itself."""


def run(context: Context) -> Outcome:
    """All runs, ranks, tables and verdicts."""
    found, composite = league(context), composite_league(context)
    note = f"{len(SEEDS)} seeds, all tasks with their own local work"
    settings = {
        "seeds": list(SEEDS), "evaluations": LOOKS, "ranked by": "training loss at the end, mean of the seeds",
        "weighting": "examples, all methods (the penalised tasks: each method's default, uniform)",
        "rounds, clients a round": {t: f"{ARENAS[t].rounds}, {ARENAS[t].clients}" for t in found},
        "tasks": {t: f"{ARENAS[t].task}: {ARENAS[t].words}" for t in found},
    }  # fmt: skip
    return Outcome(
        claims(found), league_report.pictures(found, composite, note), league_report.tables(found, composite),
        DEVIATIONS, settings,
    )  # fmt: skip


DEVIATIONS = (
    "The paper trains ResNet-18 on CIFAR-10 and -100, a CNN on FEMNIST and an RNN on Shakespeare for 500 rounds, "
    "five seeds; here are the ready tasks, small models, 20 to 100 rounds and two seeds, sized for a processor.",
    "Every method runs at the defaults of fedsolve: client_lr 0.1 where it has one, server rates as their papers' "
    "presets. “No tuning” is thus a fixed client rate of 0.1; only FedLi-LS has none.",
    "All weigh clients by examples, so that all minimise the loss that ranks them.",
    "libsvm is a9a in a Dirichlet(0.1) split; cifar is softmax regression on 100 clients in two-label shards; mnist "
    "an MLP on writers for 20 rounds (the CNN is too slow here). lasso and lowrank are their least squares alone.",
    "FedMiD, FedDualAvg, their OSP variants, Subgradient and FedDR need a penalty: they run on lasso, lowrank and "
    "voxels with the penalty of those experiments, apart from the league. FedFW, FedFW+ and FedFW-sto are left out: "
    "they need a set, whose radius no task documents, and that would be a parameter to tune.",
    "A run that hardly moves is no failure here: FedLi-LS, max stands nearly still on lasso and lowrank, where its "
    "server step is the clients' tiny one, and ranks second there because all but FedLi-LS diverge.",
    "All take the same rounds and local steps. A line search makes one or more loss evaluations besides each step's "
    "gradient, which the ranks do not count.",
    "The loss is of the last model, of one evaluation. Methods that extrapolate (FedExP, FedDuA) oscillate, which "
    "the mean of the last two models, not shown here, would damp.",
)


def claims(found: League) -> list[Claim]:
    """What the papers of tuning-free methods say, beside the ranks."""
    made = [par_claim(found, method) for method in PAR_METHODS]
    made += [pair_claim(found, *pair) for pair in NO_SERVER_RATE]
    return [*made, robust_claim(found)]


def par_claim(found: League, method: str) -> Claim:
    """FedLi against what its paper compares with, at their defaults as in the paper."""
    won = at_par(found, method, POPULAR)
    methods, _, place = rank_table(found)
    rank = place.mean(axis=1)[methods.index(method)]
    ahead_of = {o: len(ahead(found, method, o)) for o in POPULAR}
    return Claim(
        f"{method}, untuned, is at par with or better than {', '.join(POPULAR)} at their defaults",
        "at par or better for both convex and non-convex problems; the FedLi methods outperform their competitors",
        f"at par with the best of them on {len(won)} of {len(found)} tasks ({', '.join(won) or 'none'}); mean rank "
        f"{rank:.1f} of {len(methods)}; ahead on "
        + ", ".join(f"{n} of {len(found)} against {o}" for o, n in ahead_of.items()),
        by_tasks(len(won), len(found)),
        f"at par: a training loss of at most {PAR:g} times the least of theirs; all tasks reproduce, half partly",
    )


def pair_claim(found: League, method: str, other: str, words: str) -> Claim:
    """A method that sets the server's step, against the one without."""
    won = ahead(found, method, other)
    lost = ahead(found, other, method)
    equal = len(found) - len(won) - len(lost)
    return Claim(
        f"{method} {words}" + ("" if other == "FedAvg" else f" ({other}, here at its default)"),
        "Takakura et al. 2025" if method != "FedExP" else "Jhunjhunwala et al. 2023",
        f"smaller training loss on {len(won)} of {len(found)} tasks ({', '.join(won) or 'none'}), larger on "
        f"{len(lost)} ({', '.join(lost) or 'none'})"
        + (f", equal or both diverged on {equal}" if equal else ""),
        by_tasks(len(won), len(found) - equal),
        "all tasks on which they differ reproduce, half partly; defaults stand for tuned rates here",
    )


def robust_claim(found: League) -> Claim:
    """Where a method at its defaults fails."""
    shown, none = [], []
    for method in METHODS:
        diverged, worse = failures(found, method)
        if diverged or worse:
            shown.append(f"{method} {len(diverged)} + {len(worse)}")
        else:
            none.append(method)
    (diverged, worse), rest = failures(found, "FedLiLS"), "; ".join(shown)
    verdict: Verdict = "not reproduced" if diverged else "partly" if worse else "reproduced"
    return Claim(
        "A line search on the clients makes the method safe without a rate: FedLi-LS fails nowhere",
        "descent-ensuring steps at the clients ensure descent for the server's objective (abstract)",
        f"fails nowhere: {', '.join(none) or 'no method'}; diverges on + ends above the start on so many of "
        f"{len(found)} tasks: {rest or 'none'}",
        verdict,
        "reproduced if FedLi-LS never diverges nor ends above the start's loss, partly if it never diverges",
    )


EXPERIMENTS = {
    "tuning-free-league": Experiment(
        title="The tuning-free league: methods at their defaults on every ready task",
        citation="geetika2024fedli",
        summary="16 methods without tuning on 11 tasks, ranked by training loss; which to take.",
        run=run,
        minutes=68,
        needs_data=True,
    )
}
