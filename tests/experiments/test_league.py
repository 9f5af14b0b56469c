"""The tuning-free league: ranks and verdicts on made-up numbers, and a quick run without files."""

import json

import numpy as np
import pytest

from fedsolve.experiments import league, league_runs
from fedsolve.experiments.catalogue import reproduce
from fedsolve.experiments.league_ranks import ahead, at_par, by_tasks, failures, ranks, recommendation
from fedsolve.experiments.league_report import pictures, shown, tables
from fedsolve.experiments.league_runs import ARENAS, COMPOSITE, METHODS, Entry


def entry(loss, accuracy=0.5, start=1.0):
    losses = np.array([loss, loss], float)
    diverged = np.where(np.isfinite(losses), -1, 3)
    return Entry(
        np.where(np.isfinite(losses), losses, np.inf), np.full(2, accuracy), np.full(2, start), diverged
    )


def board(**of):
    """Two tasks on which every method reaches 0.5, but for those given as (first task, second task)."""
    tasks = ("digits", "synthetic")
    return {
        t: {m: entry(of.get(m.replace("-", "_").replace(", ", "_"), (0.5, 0.5))[i]) for m in METHODS}
        for i, t in enumerate(tasks)
    }


def test_ranks_share_places_and_divergence_is_last():
    np.testing.assert_array_equal(ranks([3.0, 1.0, 1.0]), [3.0, 1.5, 1.5])
    np.testing.assert_array_equal(ranks([np.nan, 1.0, np.inf]), [2.5, 1.0, 2.5])


def test_a_seed_that_diverges_is_a_divergence():
    one = Entry(np.array([0.1, np.inf]), np.full(2, 0.9), np.ones(2), np.array([-1, 7]))
    assert one.state == "diverged"
    assert shown(one) == "diverged"
    assert entry(1.5).state == "worse"
    assert shown(entry(1.5)).startswith("↑")
    assert shown(entry(0.5, np.nan)) == "0.5"


def test_par_counts_tasks_within_two_percent_of_the_best_rival():
    found = board(FedLiLS=(0.509, 0.52), FedAdam=(0.6, np.nan))
    assert at_par(found, "FedLiLS", ("FedAvg", "FedAdam")) == ["digits"]
    assert ahead(found, "FedLiLS", "FedAdam") == ["digits", "synthetic"]
    assert failures(found, "FedAdam") == (["synthetic"], [])


@pytest.mark.parametrize(("won", "verdict"), [(4, "reproduced"), (2, "partly"), (1, "not reproduced")])
def test_all_tasks_or_half(won, verdict):
    assert by_tasks(won, 4) == verdict


def test_claims_follow_the_numbers():
    def verdicts(**of):
        return [c.verdict for c in league.claims(board(**of))]

    ahead = verdicts(FedDuAdam=(0.4, 0.4), FedDuAdagrad=(0.4, 0.4), FedExP=(0.499, 0.499))
    assert set(ahead) == {"reproduced"}  # at par everywhere, nothing fails
    bad = verdicts(FedLiLS=(np.nan, 0.6), FedDuAdam=(0.7, 0.7))
    assert bad[0] == bad[3] == bad[-1] == "not reproduced"
    assert verdicts(FedLiLS=(1.4, 0.4))[-1] == "partly"
    assert verdicts(FedLiLS=(0.4, 0.9))[0] == "partly"


def test_recommendation_prefers_what_never_fails_where_that_is_asked():
    answers = {row[0]: row[1] for row in recommendation(board(FedExP=(0.1, np.nan), FedYogi=(0.4, 0.4)))}
    assert answers["the fewest failures, then the least mean rank"] == "FedYogi"
    assert answers["the most first places"] in ("FedExP", "FedYogi")


def test_pictures_and_tables_of_made_up_numbers():
    found = board(FedExP=(np.nan, 1.2))
    composite = {"lasso": {m: entry(0.1 * (i + 1)) for i, m in enumerate(COMPOSITE)}}
    assert set(pictures(found, composite, "made up")) == {"league", "composite"}
    made = tables(found, composite)
    assert made["composite_ranks"].rows[0][:2] == ["FedMiD", 1.0]
    assert made["ranks"].rows[-1][:4] == ["FedExP", 16.0, 1, 1]


@pytest.mark.full
def test_quick_run(tmp_path, monkeypatch):
    """Three methods on one task and one penalised task, without files."""
    monkeypatch.setattr(league_runs, "METHODS", {m: METHODS[m] for m in METHODS if m in KEPT})
    monkeypatch.setattr(league, "METHODS", league_runs.METHODS)
    monkeypatch.setattr(league_runs, "SMALL", ("regression",))
    monkeypatch.setattr(league_runs, "COMPOSITE", COMPOSITE[:2])
    monkeypatch.setattr(league_runs, "POPULAR", KEPT[:2])
    monkeypatch.setattr(league, "POPULAR", KEPT[:2])
    monkeypatch.setattr(league, "NO_SERVER_RATE", league.NO_SERVER_RATE[-1:])
    monkeypatch.setattr(league, "PAR_METHODS", ("FedLiLS",))
    made = reproduce("tuning-free-league", tmp_path, quick=True)
    found = json.loads((tmp_path / "results.json").read_text())
    assert "QUICK" in found["made_with"]
    assert {c["verdict"] for c in found["claims"]} == {None}
    assert all((tmp_path / f"{key}.png").stat().st_size > 5000 for key in made.outcome.pictures)
    assert len(list((tmp_path / "parts").iterdir())) == 5


KEPT = ("FedAvg", "FedExP", "FedLiLS")


def test_every_arena_names_a_task_of_the_catalogue_and_its_options():
    from fedsolve.tasks.catalogue import TASKS

    of_networks = {"femnist", "femnist-autoencoder", "fashion-mnist", "cifar100", "shakespeare", "next-word"}
    of_networks |= {"newsgroups-minilm"}
    assert {a.task for a in ARENAS.values()} == set(TASKS) - of_networks
