"""`fedsolve study` on a file: run, interrupted, resumed and judged again; what is wrong in it is one line."""

import json
import re
import sys
from pathlib import Path

import pytest

from fedsolve.cli.configuration.study import study_in
from fedsolve.core.errors import Interrupted
from fedsolve.core.sampling import Bernoulli
from fedsolve.studies import reproduce as names
from fedsolve.studies import runner

TEXT = """
task = "regression"

[task_options]
num_clients = 3
examples_per_client = 4
features = 5

[run]
rounds = 4
eval_every = 2
participation = 0.9

[study]
metric = "train_loss"
select = "train_loss"
seeds = 2

[[method]]
name = "FedAvg"
settings = { client_lr = 0.01 }

[[method]]
name = "FedAdam"
label = "Adam"
settings = { beta1 = 0.5 }
grid = { client_lr = [0.01, 0.1], server_lr = "1e-3:1:3log" }

[[claim]]
says = "Adam is better"
theirs = "Table 1"
rule = "better"
a = "Adam"
b = "FedAvg"

[[claim]]
says = "They are alike"
rule = "close"
a = "Adam"
b = "FedAvg"
margin = 1e9
"""


def write(*changes: tuple[str, str]) -> None:
    """The file with other text in some places."""
    text = TEXT
    for old, new in changes:
        assert text.count(old) >= 1, old
        text = text.replace(old, new, 1)
    Path("mine.toml").write_text(text)


@pytest.mark.full
def test_a_study_is_interrupted_goes_on_and_is_judged_again(call, monkeypatch):
    write()
    sweep = runner.fs.sweep

    def interrupted(*a, **k):
        if k["label"] == "Adam":
            raise Interrupted("now")
        return sweep(*a, **k)

    monkeypatch.setattr(runner.fs, "sweep", interrupted)
    ended = call("study", "mine.toml")
    assert ended.code == 130
    assert "continue with the same command, fedsolve study mine.toml" in ended.err
    (kept,) = Path("runs/mine/parts").iterdir()
    before = kept.stat().st_mtime_ns
    monkeypatch.setattr(runner.fs, "sweep", sweep)
    ended = call("study", "mine.toml", "--json")
    assert ended.code == 0
    assert kept.stat().st_mtime_ns == before
    assert {p.name for p in Path("runs/mine").iterdir()} >= {
        "page.html",
        "curves.png",
        "grid1.png",
        "regression.csv",
    }
    page = Path("runs/mine/page.html").read_text()
    assert "fedsolve study mine.toml" in page
    assert "paper" not in re.sub(r"<style>.*?</style>|<script.*?</script>", "", page, flags=re.DOTALL)
    assert "time is not known" not in ended.err
    told = ended.document["claims"]
    assert [(c["claim"], c["theirs"]) for c in told] == [
        ("Adam is better", "Table 1"), ("They are alike", ""),
    ]  # fmt: skip
    assert told[1]["verdict"] == "not learnt"  # of two seeds in a few rounds nothing is certain
    assert json.loads(Path("runs/mine/results.json").read_text())["experiment"] == "mine.toml"
    assert call("verdict", "mine.toml", "--json").document["claims"] == told


def test_what_the_file_says_is_what_is_run():
    write()
    study = study_in(Path("mine.toml"))
    assert study.seeds == (0, 1)
    assert study.methods["FedAvg"].published == {"client_lr": 0.01}
    assert study.methods["Adam"].grid == {
        "client_lr": (0.01, 0.1),
        "server_lr": (1e-3, pytest.approx(0.0316, rel=1e-2), 1.0),
    }
    adam = study.methods["Adam"].make(client_lr=0.1, server_lr=1.0)
    assert adam.server_optimizer.beta1 == 0.5
    options = dict(study.problems["regression"].options)
    assert options.pop("sampling") == Bernoulli(0.9)
    assert options == {"rounds": 4, "eval_every": 2}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("seeds = 2", "seed = 2", "mine.toml: unknown key in study 'seed': did you mean 'seeds'?"),
        ("seeds = 2", "seeds = []", "mine.toml: seeds = []: give at least one"),
        ("seeds = 2", "seeds = [1, 1]", "mine.toml: seeds = [1, 1]: a seed comes twice"),
        (
            '"FedAdam"',
            '"FedAdm"',
            "mine.toml: method Adam: unknown algorithm 'FedAdm': did you mean 'FedAdam'?",
        ),
        ("[0.01, 0.1]", "[]", "mine.toml: method Adam: grid: client_lr = [] must be a list of values"),
        ("server_lr =", "sever_lr =", "mine.toml: method Adam: unknown setting of FedAdam 'sever_lr'"),
        ("[0.01, 0.1]", "[0.01, -1]", "mine.toml: method Adam: client_lr = -1.0 must be"),
        ('label = "Adam"', 'label = "FedAvg"', "mine.toml: two methods are called 'FedAvg'"),
        ('a = "Adam"', 'a = "FedAdam"', "mine.toml: claim 1: unknown method 'FedAdam': did you mean 'Adam'?"),
        (
            'rule = "better"',
            'rule = "best"',
            "mine.toml: claim 1: rule = 'best' must be 'better', 'better_than_all'",
        ),
        ('b = "FedAvg"', 'others = "FedAvg"', "mine.toml: claim 1: others = 'FedAvg' must be a list"),
        ('b = "FedAvg"', 'others = ["FedAvg"]', "mine.toml: claim 1: better needs b: it takes a, b"),
        (
            'rule = "better"',
            'rule = "better"\nmargin = 1.0',
            "mine.toml: claim 1: better takes a, b and no margin",
        ),
        ("rounds = 4", "rounds = 0", "mine.toml: run.rounds = 0 must be >= 1"),
        ("rounds = 4", "rounds = 4\nseed = 3", "mine.toml: run.seed: a study has several"),
        (
            '"train_loss"',
            '"train_los"',
            "mine.toml: unknown metric of study.metric 'train_los': did you mean 'train_loss'?",
        ),
        ("features = 5", "featurs = 5", "mine.toml: unknown option of the task regression 'featurs'"),
        ('"regression"', '"regresion"', "mine.toml: unknown task 'regresion': did you mean 'regression'?"),
    ],
)
def test_what_is_wrong_is_one_line(call, old, new, says):
    write((old, new))
    ended = call("study", "mine.toml")
    assert ended.code == 2
    assert says in ended.err
    assert ended.err.count("\n") == 1
    assert not Path("runs").exists()


def test_one_method_is_no_study(call):
    Path("mine.toml").write_text('task = "digits"\n[[method]]\nname = "FedAvg"\n')
    ended = call("study", "mine.toml")
    assert ended.code == 2
    assert "method" in ended.err
    assert (
        call("study", "gone.toml").err
        == "error: cannot read the configuration gone.toml: No such file or directory\n"
    )


# Where the studies of the papers are found: in the clone around the current folder, or nowhere, which is said.

STUDY = """
import fedsolve as fs
from fedsolve.studies import Method, Problem, Study

problem = Problem("softmax regression", "30 clients", lambda data_dir: fs.tasks.synthetic(), {"rounds": 2})
STUDY = Study(
    "A study in a file", "Of one's own.", {"line": problem},
    {"FedAvg": Method(lambda client_lr: fs.FedAvg(client_lr), {"client_lr": 0.1})}, (0,), (), {}, needs_data=False,
)
"""


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """Another clone, with one study, and the current folder somewhere in it."""
    (tmp_path / "src" / "fedsolve").mkdir(parents=True)
    study = tmp_path / "experiments" / "paper" / "a_study"
    study.mkdir(parents=True)
    for folder in (study, study.parent, study.parent.parent):
        (folder / "__init__.py").touch()
    (study / "study.py").write_text(STUDY)
    monkeypatch.chdir(study)
    here = [name for name in sys.modules if name.partition(".")[0] == names.PROGRAMS]
    for name in here:
        monkeypatch.delitem(sys.modules, name)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == names.PROGRAMS]:
        del sys.modules[name]  # what was there before comes back


def test_the_clone_around_the_current_folder_is_the_one(clone, call):
    ended = call("list", "experiments", "--json")
    assert [row["name"] for row in ended.document] == ["a-study"]
    assert call("reproduce", "a-study", "--quick", "--out", "ran").code == 0
    assert "A study in a file" in Path("ran", "page.html").read_text()


def test_from_elsewhere_it_is_the_one_that_the_package_runs_from(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert names.repository() == Path(__file__).parents[2]
    assert "lasso-1" in names.entries()


@pytest.mark.parametrize("words", [("reproduce", "lasso-1", "--quick"), ("verdict", "lasso-1")])
def test_without_a_clone_one_line_says_where_they_are(call, monkeypatch, words):
    """As where the package was installed from its wheel."""
    monkeypatch.setattr(names, "repository", lambda: None)
    ended = call(*words)
    assert ended.code == 2
    assert ended.err == (
        "error: experiment 'lasso-1': the studies of the papers are not installed with the package; run "
        "`fedsolve reproduce lasso-1` in a clone of fedsolve's repository, which has them in experiments/\n"
    )


def test_without_a_clone_the_list_says_so(call, monkeypatch):
    monkeypatch.setattr(names, "repository", lambda: None)
    ended = call("list", "experiments", "--json")
    assert (ended.code, ended.document) == (0, [])
    assert "the studies of the papers are in experiments/ of fedsolve's repository" in ended.err


def test_a_study_in_a_file_of_its_own(call):
    Path("mine_in_a_file.py").write_text(STUDY)
    assert call("study", "mine_in_a_file.py", "--quick").code == 0
    assert "fedsolve study mine_in_a_file.py" in Path("runs", "mine_in_a_file", "page.html").read_text()


@pytest.mark.full
def test_a_program_of_the_clone_by_its_path(call):
    path = names.program_folders()["fw-averaging"] / "study.py"
    assert call("study", str(path), "--quick").code == 0
    assert Path("runs", "fw_averaging", "page.html").exists()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("gone.py", "gone.py: there is no such file"),
        ("random.py", "random"),
        ("empty_study.py", "no attribute 'STUDY'"),
    ],
)
def test_a_file_without_a_study_is_one_line(call, name, says):
    if name != "gone.py":
        Path(name).touch()
    ended = call("study", name)
    assert ended.code == 2
    assert says in ended.err
    assert ended.err.count("\n") == 1


# Experiments of another distribution, found by its entry points: listed, run, and named where they cannot be.

OTHER_STUDY = """
import fedsolve as fs
from fedsolve.studies import Method, Problem, Study

problem = Problem("softmax regression", "30 clients", lambda data_dir: fs.tasks.synthetic(), {"rounds": 2})
STUDY = Study(
    "A study of others", "Theirs.", {"line": problem},
    {"FedAvg": Method(lambda client_lr: fs.FedAvg(client_lr), {"client_lr": 0.1})}, (0,), (), {},
    paper="doe2026other", needs_data=False,
)
STUDIES = {"theirs-2": STUDY}
NUMBER = 3


def theirs():
    return STUDY


def raises():
    raise RuntimeError("no such scanner")
"""
ENTRIES = """[fedsolve.studies]
theirs = others:STUDY
theirs-2 = others:STUDIES
theirs-3 = others:theirs
lasso-1 = others:STUDY
gone = nowhere:STUDY
number = others:NUMBER
broken = others:raises
../up = others:STUDY
"""


@pytest.fixture
def others(tmp_path_factory, monkeypatch):
    """A distribution beside this one, as installing it leaves it."""
    place = tmp_path_factory.mktemp("site")
    (place / "others.py").write_text(OTHER_STUDY)
    info = place / "others-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    monkeypatch.syspath_prepend(str(place))
    names._installed.cache_clear()
    yield
    names._installed.cache_clear()


BAD = {
    "gone": "'gone' of others 1.0 (nowhere:STUDY): ModuleNotFoundError: No module named 'nowhere'",
    "number": "'number' of others 1.0 (others:NUMBER) is an int: name a fedsolve.studies.Study",
    "broken": "'broken' of others 1.0 (others:raises): RuntimeError: no such scanner (",
    "../up": "'../up' of others 1.0 (others:STUDY): a name has letters, digits,",
}


def test_they_are_listed_after_ours_and_those_that_cannot_be_are_named(others, call):
    ended = call("list", "experiments", "--json")
    rows = {row["name"]: row for row in ended.document}
    assert list(rows) == [*names.program_folders(), "theirs", "theirs-2", "theirs-3"]
    assert rows["theirs"]["summary"] == "Theirs"
    assert rows["lasso-1"]["citation"] == "yuan2021fco"  # a name of ours stays ours
    said = [line for line in ended.err.splitlines() if line.startswith("left out: experiment ")]
    assert len(said) == len(BAD)
    assert all(any(words in line for line in said) for words in BAD.values())


@pytest.mark.parametrize(("name", "words"), BAD.items())
def test_one_that_cannot_be_loaded_is_one_line(others, call, name, words):
    ended = call("reproduce", name)
    assert ended.code == 2
    assert ended.err.startswith("error: experiment " + words)
    assert ended.err.count("\n") == 1


@pytest.mark.full
def test_one_runs_by_its_name(others, call):
    assert call("reproduce", "theirs-2", "--quick").code == 0
    page = Path("runs", "theirs-2", "page.html").read_text()
    assert "A study of others" in page
    assert "doe2026other ·" in page  # a paper that is not in our list has its key alone
    assert "Run it again: fedsolve reproduce theirs-2" in page


# `fedsolve verdict` without a name: the stored experiments of the repository, a line each.


def test_verdicts_of_all_stored_experiments(call, monkeypatch, tmp_path):
    """A line each and their sum; what is asked of one needs its name; without a repository there are none."""
    folders = names.program_folders()
    few = {name: folders[name] for name in ("fw-averaging", "fw-split")}
    few |= {"vit": tmp_path}  # where no data is stored
    monkeypatch.setattr(names, "program_folders", lambda: few)
    ended = call("verdict")
    assert ended.code == 0
    rows = {line.split("│")[1].strip(): line for line in ended.out.splitlines() if "│" in line}
    assert set(rows) == {"fw-averaging", "fw-split", "all"}
    assert "3 reproduced" in rows["fw-split"]
    claims = call("verdict", "--json").document["claims"]
    stored = [json.loads((few[name] / "results.json").read_text())["claims"] for name in claims]
    assert list(claims.values()) == stored
    refused = call("verdict", "--full")
    assert (refused.code, "give its NAME" in refused.err) == (2, True)
    monkeypatch.setattr(names, "program_folders", dict)
    nowhere = call("verdict")
    assert (nowhere.code, "no stored studies here" in nowhere.err) == (2, True)
