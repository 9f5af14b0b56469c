"""Several seeds and several methods at once: the bits of single runs, folders, interruption, divergence, refusals."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.results.record_files import FAILURE, HISTORY, MODEL
from harness import squares_of_leaf as loss

RNG = np.random.default_rng(0)
CLIENTS = [fs.Examples(RNG.normal(size=(8, 3)), RNG.normal(size=8)) for _ in range(5)]


TASK = fs.Task.from_arrays(loss, {"w": np.zeros(3)}, CLIENTS, batch_size=4)
OPTIONS = {"rounds": 6, "eval_every": 3, "clients_per_round": 2}


def run(method=None, **options):
    return fs.run(method or fs.FedAvg(0.1), TASK, **(OPTIONS | options))


def compared(**options):
    return fs.compare([fs.FedAvg(0.1), fs.FedExP(0.1)], TASK, **(OPTIONS | options))


def assert_same(one, other):
    np.testing.assert_array_equal(one.params["w"], other.params["w"])
    for part in ("evaluations", "rounds"):
        a, b = getattr(one.history, part), getattr(other.history, part)
        assert a.keys() == b.keys()
        for name in a.keys() - {"seconds"}:
            np.testing.assert_array_equal(a[name], b[name])
    assert one.history.settings == other.history.settings


def test_each_seed_has_the_bits_of_its_run_alone():
    found = run(seeds=[0, 3, 1])
    assert repr(found) == "Seeds(FedAvg x 3 on custom)"
    for seed, result in zip((0, 3, 1), found.runs, strict=True):
        assert_same(result, run(seed=seed))
    finals = found.final("train_loss")
    assert len(set(finals.tolist())) == 3
    assert finals[1] == found[1].final("train_loss") == found.metrics["train_loss"][1, -1]
    np.testing.assert_array_equal(found.params["w"][2], found[-1].params["w"])
    assert found.seeds == (0, 3, 1)
    with pytest.raises(fs.InvalidInput, match=r"seeds\[3\]: FedAvg has 3 runs: give 0 to 2"):
        found[3]


@pytest.mark.full
def test_methods_with_different_objectives_are_noted_and_can_have_one(tmp_path):
    """The note of the command line; `weighting` gives the bits of methods that were built with it."""
    methods = [fs.FedAvg(0.1), fs.FedExP(0.1), fs.FedProx(0.1)]
    found = fs.compare(methods, TASK, **OPTIONS, out=tmp_path / "c")
    (note,) = found.notes
    assert note == (
        "different objectives: FedExP minimises the mean loss over clients (weighting uniform), FedAvg, FedProx over "
        "examples; one for all: weighting='uniform'"
    )
    assert "different objectives: FedExP" in (tmp_path / "c" / "page.html").read_text()
    alike = fs.compare(methods, TASK, weighting="uniform", **OPTIONS)
    assert alike.notes == ()
    assert_same(alike["FedAvg"].runs[0], run(fs.FedAvg(0.1, weighting="uniform")))
    assert_same(alike["FedProx"].runs[0], run(fs.FedProx(0.1, weighting="uniform")))
    unnamed = fs.Proximal(fs.FedOpt(fs.client.SGD(0.1), fs.server.ServerSGD(), weighting="examples"), 0.1)
    other = fs.compare([fs.FedExP(0.1), unnamed], TASK, weighting="uniform", **OPTIONS)
    assert_equal_models(other.runs[1], alike["FedProx"].runs[0])
    for method, weighting, words in (
        (fs.FedExP(0.1), "equal", "weighting = 'equal' must be 'uniform' or 'examples'"),
        (
            fs.FedDyn(0.1),
            "examples",
            "FedDyn cannot weigh clients by 'examples', it is 'uniform' alone: .* give ",
        ),
        (fs.FedExP(0.1, weighting="examples"), "uniform", "FedExP: weighting = 'examples' does not go with "),
    ):
        with pytest.raises(fs.InvalidInput, match=words):
            fs.compare([fs.FedAvg(0.1), method], TASK, weighting=weighting, **OPTIONS)


def assert_equal_models(one, other):
    np.testing.assert_array_equal(one.params["w"], other.params["w"])


def test_results_side_by_side():
    slow = run(fs.FedAvg(0.01), seeds=2, label="slow")
    found = fs.Results([run(), slow, run(seed=3)])
    assert repr(found) == "Results(FedAvg x 2, slow x 2 on custom)"
    assert found.to_latex().startswith("% Mean ± sample standard deviation (n - 1) over 2 seeds.")
    np.testing.assert_array_equal(found.final("train_loss")["slow"], slow.final("train_loss"))
    assert found["slow"] is slow
    assert dict(found.items())["FedAvg"] == found["FedAvg"]
    assert [*found] == [*found.labels] == ["FedAvg", "slow"]
    for wrong, words in (
        ("FedAv", "unknown method 'FedAv': did you mean 'FedAvg'"),
        (0, r"results\[0\]: give the label of a method: 'FedAvg', 'slow'"),
    ):
        with pytest.raises(fs.InvalidInput, match=words):
            found[wrong]


@pytest.mark.full
def test_each_seed_has_its_own_stream(tmp_path):
    found = run(seeds=2, residency="stream", out=tmp_path)
    assert_same(found.runs[1], run(seed=1, residency="stream"))


def test_each_seed_has_its_own_clock():
    fleet = {"systems": "stragglers", "quorum": 1}
    found = run(seeds=2, **fleet)
    assert_same(found.runs[1], run(seed=1, **fleet))
    times = [r.metrics["time"][-1] for r in found.runs]
    assert times[0] != times[1]


@pytest.mark.full
def test_an_interrupted_call_goes_on_where_each_seed_was(tmp_path):
    """Of two seeds; resumed with a third one, which begins: the models are those of undisturbed runs."""
    sent = []

    def stop(at):
        if at.by_seed[1] and not sent:
            sent.append(at.round)
            handler, last = signal.getsignal(signal.SIGINT), time.monotonic() + 60
            os.kill(os.getpid(), signal.SIGINT)
            while signal.getsignal(signal.SIGINT) is handler and time.monotonic() < last:
                time.sleep(0.001)  # until the main thread notices: 600 rounds may be over before

    with pytest.raises(
        fs.Interrupted, match=r"stopped with [01] of 2 seeds done; saved in .*: go on .* with resume=True"
    ):
        run(seeds=2, out=tmp_path, progress=stop, rounds=600)
    with pytest.raises(fs.InvalidInput, match="holds a run with seeds already"):
        run(seeds=2, out=tmp_path)
    again = run(seeds=3, out=tmp_path, resume=True, rounds=600)
    for one, two in zip(again.runs, run(seeds=3, rounds=600).runs, strict=True):
        np.testing.assert_array_equal(one.params["w"], two.params["w"])
    assert (tmp_path / "page.html").exists()
    assert_same(fs.load(tmp_path / "seed-2", TASK), again.runs[2])


def test_a_run_in_a_folder_leaves_its_page_and_its_model(tmp_path):
    result = run(out=tmp_path)
    assert {HISTORY, MODEL, "metrics.jsonl", "page.html", "checkpoint.safetensors"} <= set(
        os.listdir(tmp_path)
    )
    assert_same(fs.load(tmp_path, TASK), result)
    with pytest.raises(fs.InvalidInput, match="holds a run with one seed already"):
        run(seeds=2, out=tmp_path)


@pytest.mark.full
def test_a_comparison_is_its_runs(tmp_path):
    methods = {"slow": fs.FedAvg(0.01), "fast": fs.FedAvg(0.1), "lost": fs.FedAvg(1e30)}
    found = fs.compare(methods, TASK, seeds=2, out=tmp_path, **OPTIONS)
    assert found.labels == ("slow", "fast", "lost")
    assert_same(found["fast"].runs[1], run(seed=1, label="fast"))
    assert [x.params is None for x in found.runs] == [False] * 4 + [True] * 2
    assert [line.partition(": round")[0] for line in found.failures] == ["lost, seed 0", "lost, seed 1"]
    assert np.isnan(found.final("train_loss")["lost"]).all()
    assert (tmp_path / "lost" / "seed-1" / FAILURE).exists()
    assert not (tmp_path / "lost" / "seed-1" / MODEL).exists()
    assert "lost, seed 0: round" in (tmp_path / "page.html").read_text()
    np.testing.assert_array_equal(
        fs.load(tmp_path / "slow" / "seed-0").params["w"], found.runs[0].params["w"]
    )
    single = fs.compare([fs.FedAvg(0.1), fs.FedExP(0.1)], TASK, seed=1, **OPTIONS)
    assert_same(single.runs[0], run(seed=1))


def test_callbacks_of_a_comparison_are_each_runs_own():
    """FedAvg ends after 3 of 6 rounds, of two seeds the second one's run alone; FedExP goes on."""

    def callbacks(label, seed=1):
        ends = (label, seed) == ("FedAvg", 1)
        return [lambda at: "enough" if ends and at.round else None]

    found = compared(callbacks=callbacks)
    assert [r.metrics["round"].tolist() for r in found.runs] == [[0, 3], [0, 3, 6]]
    assert found.runs[0].history.notes == ("ended after round 3 of 6: enough",)
    assert_same(found.runs[1], compared().runs[1])
    several = compared(callbacks=callbacks, seeds=2)
    assert [r.metrics["round"][-1] for r in several.runs] == [6, 3, 6, 6]
    assert several["FedAvg"].notes == found.runs[0].notes


def test_if_all_diverge_it_is_said(tmp_path):
    with pytest.raises(fs.Diverged, match="every client's update of FedAvg is not finite"):
        run(fs.FedAvg(1e30), seeds=2)
    with pytest.raises(fs.Diverged):
        run(fs.FedAvg(1e30), out=tmp_path)
    assert "not finite" in (tmp_path / FAILURE).read_text()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: run(seeds=2, seed=1), "give seed or seeds, not both"),
        (lambda: run(seeds=0), "seeds = 0 must be how many"),
        (lambda: run(seeds=2, callbacks=[print]), "with seeds each run needs its own callbacks"),
        (lambda: run(seeds=2, resume=True), "resume needs the folder of the run: give out"),
        (lambda: fs.compare([fs.FedAvg(0.1)], TASK, rounds=1), "nothing to compare"),
        (
            lambda: compared(callbacks=[print]),
            r"callbacks = .* must be a function of label that makes those of",
        ),
        (
            lambda: compared(callbacks=lambda label: [], seeds=2),
            r"of label and seed .* callbacks=lambda label, seed:",
        ),
        (lambda: compared(callbacks=lambda label: [3]), "callbacks: 3 must be a function"),
        (
            lambda: fs.compare([fs.FedAvg(0.1)] * 2, TASK, rounds=1),
            "two methods are called FedAvg: give them as",
        ),
        (
            lambda: fs.compare({"a": fs.FedAvg(0.1), "b": 3}, TASK, rounds=1),
            "b: 3 is not a method such as FedAvg",
        ),
        (lambda: fs.compare({"a": fs.FedAvg(0.1), " ": 3}, TASK, rounds=1), "a label must be text"),
        (lambda: fs.compare("FedAvg", TASK, rounds=1), "must be methods by label, or a list"),
        (lambda: fs.Results(()), "must be results of fs.run"),
        (lambda: fs.Results([run(seed=1).history]), "must be results of fs.run"),
        (
            lambda: fs.Results([run(), run(fs.FedAvg(0.2), seed=1)]),
            "two results are called FedAvg and are not seeds",
        ),
        (lambda: fs.Results([run(), run()]), "two results are called FedAvg and are not seeds"),
    ],
)
def test_what_is_refused_is_one_line(call, words):
    with pytest.raises(fs.InvalidInput, match=words) as raised:
        call()
    assert "\n" not in str(raised.value)
