"""Bad input ends with exit code 2 and one line that says what, where and the remedy; nothing is written."""

import os
from pathlib import Path

import jax
import pytest
from cli_small import SMALL

import fedsolve.cli.runs
import fedsolve.engine.scheduler
from fedsolve.cli.configuration.config import parse, read_toml
from fedsolve.cli.folders import restore_on_error
from fedsolve.cli.processes import start_jax
from fedsolve.core.errors import Diverged, Interrupted, InvalidInput
from fedsolve.engine import scheduler
from fedsolve.engine.compute.layout import cores
from fedsolve.folders.files import locked
from fedsolve.folders.run_folder import RUN as LATE_RUN

RUN = ("run", "digits", "FedAvg", *SMALL)

FW = ("run", "digits", "FedFW", *SMALL, "--set")
MLP = ("run", "digits", "FedFW", "--rounds", "3")
MID = ("run", "digits", "FedMiD", *SMALL, "--set", "psi={name='SquaredL2', weight=1}")

PLATEAU = "client_lr={schedule='reduce_on_plateau', initial=0.1, metric='test_loss'"
SWEEP = ("sweep", "digits", "FedAvg", *SMALL)

CALLS = [
    (("rnu",), "No such command 'rnu'"),
    (("run", "--rouns", "3"), "--rounds"),
    (("run", "digits", "FedAvg", "--rounds", "x"), "'x' is not a valid integer"),
    (("run",), "no task"),
    ((*RUN, "--out", ""), "Invalid value for '--out': it is empty"),
    ((*RUN, "--resume", ""), "Invalid value for '--resume': it is empty"),
    (("run", "digits"), "no method"),
    (("run", "digit", "FedAvg"), "unknown task 'digit': did you mean 'digits'?"),
    (("run", "digits", "fedavgg"), "did you mean 'FedAvg'?"),
    (("run", "digits", "Scafold+FedAvg"), "did you mean 'SCAFFOLD'?"),
    ((*RUN, "--set", "client_rl=1"), "unknown setting of FedAvg 'client_rl': did you mean 'client_lr'?"),
    ((*RUN, "--set", "client_lr"), "--set 'client_lr' must be written key=value"),
    ((*RUN, "--set", "client_lr=0.1.2"), "--set client_lr = '0.1.2' is not a value"),
    ((*RUN, "--set", "client_lr=1", "--set", "client_lr=2"), "--set client_lr is given twice"),
    ((*RUN, "--set", "client_lr=fast"), "FedAvg: client_lr = 'fast' must be a number or a rate by round"),
    ((*RUN, "--set", "client_lr=-1"), "client_lr = -1 must be finite and > 0"),
    ((*RUN, "--set", "client_lr=nan"), "client_lr = nan must be finite"),
    ((*RUN, "--set", "client_lr=true"), "client_lr = True must be a number"),
    ((*RUN, "--set", "weighting=all"), "weighting = 'all' must be one of uniform, examples"),
    ((*RUN, "--set", "client_lr={schedule='exponentail', initial=1}"), "did you mean 'exponential'?"),
    ((*RUN, "--set", "client_lr={schedule='exponential', initial=1}"), "exponential needs decay"),
    ((*RUN, "--set", "client_lr={schedule='inverse_sqrt', initial=1, decay=1}"), "Known: initial"),
    ((*RUN, "--set", "clip_norm={a=1}"), "clip_norm = {'a': 1} must be a number"),
    ((*RUN, "--set", "Other.client_lr=1"), "unknown method of --set 'Other'"),
    (("run", "digits", "FedAvgM", *SMALL, "--set", "ema=1"), "ema = 1 must be true or false"),
    ((*RUN, "--task-set", "num_client=3"), "did you mean 'num_clients'?"),
    ((*RUN, "--task-set", "seed=1.5"), "seed = 1.5 must be an integer"),
    ((*RUN, "--task-set", "partition=diriclet"), "did you mean 'dirichlet'?"),
    ((*RUN, "--data-dir", "."), "--data-dir: the task digits reads no data files: leave it out"),
    ((*RUN, "--executor", "processes:2"), "--executor runs several seeds: give --seeds, or leave it out"),
    ((*RUN, "--seeds", "2", "--executor", "proceses:2"), "executor = 'proceses:2' must be such as processes:4"),
    (("run", "mnist", "FedAvg"), "FEDSOLVE_DATA"),
    ((*RUN, "--clients-per-round", "5"), "the task has 4 clients"),
    ((*RUN, "--rounds", "0"), "run.rounds = 0 must be >= 1"),
    ((*RUN, "--seed", "-1"), "run.seed = -1 must be >= 0"),
    ((*RUN, "--batch-size", "half"), "run.batch_size = 'half' must be an integer or 'full'"),
    ((*RUN, "--dtype", "float16"), "run.dtype = 'float16' must be 'float32' or 'float64'"),
    ((*RUN, "--participation", "1.5", "--clients-per-round", "2"), "run.participation = 1.5 must be <= 1"),
    ((*RUN, "--participation", "0.5"), "give clients_per_round or participation, not both"),
    ((*RUN, "--epochs", "1", "--local-steps", "2"), "give epochs or local_steps, not both"),
    ((*RUN, "--devices", "64"), "devices = 64 must be between 1 and"),
    ((*RUN, "--config", "nowhere.toml"), "cannot read the configuration nowhere.toml: No such file"),
    (("compare", "digits", "FedAvg"), "name two methods"),
    (("compare", "digits", "FedAvg", "FedAvg"), "two methods are called 'FedAvg'"),
    (("compare", "digits", "FedAvg", "FedExP", "--set", "mu=1"), "unknown setting of FedAvg, FedExP 'mu'"),
    (("run", "--resume", "nowhere"), "there is no folder nowhere"),
    (("run", "digits", "FedFW", *SMALL), "FedFW needs constraint, such as L1Ball(10.0)"),
    ((*FW, "constraint={name='L1Bal', radius=1}"), "did you mean 'L1Ball'?"),
    ((*FW, "constraint={name='L1Ball'}"), "L1Ball needs radius"),
    ((*FW, "constraint={name='L1Ball', radius=-1}"), "radius of L1Ball = -1 must be finite and > 0"),
    ((*FW, "constraint={name='L1Ball', radius='x'}"), "L1Ball: radius = 'x' must be a number"),
    ((*FW, "constraint={name='L1Ball', raduis=1}"), "did you mean 'radius'?"),
    ((*FW, "constraint={name='L1', weight=1}"), "FedFW needs the operation 'lmo', which L1 lacks"),
    ((*FW, "constraint={name='L1Ball', radius=1, on='wieght'}"), "no leaf of the model has this name"),
    ((*FW, "constraint={name='L1Ball', radius=1, on='weight'}"), "FedFW needs a set on every leaf"),
    ((*FW, "constraint={name='NuclearBall', radius=1}"), "NuclearBall needs a matrix"),
    ((*FW, "constraint=3"), "must be a table with a name"),
    ((*FW, "constraint={name='L1Ball', radius=1}", "--set", "steps={name='Convxe'}"), "did you mean 'Convex'?"),
    ((*FW, "constraint={name='L1Ball', radius=1}", "--set", "steps={name='Convex', participation=2}"), "<= 1"),
    ((*MLP, "--set", "constraint={name='L1Ball', radius=1}"), "start='projected'"),
    ((*MID, "--set", "mirror={name='PNorm', p=1.5}"), "no closed form with SquaredL2 (it has one with L1)"),
    (("reproduce", "laso-2"), "unknown experiment 'laso-2': did you mean 'lasso-2'?"),
    (("reproduce", "fmri", "--out", "here"), "FEDSOLVE_DATA"),
    (("list", "algoritms"), "did you mean 'algorithms'?"),
    (("show", "nowhere"), "there is no folder nowhere: give the folder of a run"),
    ((*RUN, "--lr", "0.1"), "--lr is a setting of the method: give --set client_lr=VALUE"),
    ((*RUN, "--server-lr", "0.1"), "--server-lr is a setting of the method: give --set server_lr=VALUE"),
    ((*RUN[:2], "FedAvg+SCAFFOLD"), "FedAvg wraps no method: a wrapper comes before it, write SCAFFOLD+FedAvg"),
    ((*RUN[:2], "FedAvg+FedAdam"), "FedAvg wraps no method: a wrapper comes before it, as in SCAFFOLD+FedAvg"),
    ((*RUN, "--num-clients", "9"), "is an option of the task: give --task-set num_clients=VALUE"),
    ((*RUN, "--gpu"), "error: No such option: --gpu (see `fedsolve run --help`)\n"),
    ((*RUN, "--target", "nan"), "error: target = nan must be finite\n"),
    ((*RUN, "--out"), "error: Option '--out' requires an argument (see `fedsolve --help`)\n"),
    ((*RUN, "--json=3"), "error: Option '--json' does not take a value (see `fedsolve --help`)\n"),
    ((*RUN, "--clients", "9"), "Did you mean --clients-per-round?"),
    (("run", "FedAvg", "digits"), "FedAvg is a method: the task comes first, such as `fedsolve run digits FedAvg`"),
    (("compare", "digits", "FedAvg", "+", "FedAdam"), "without spaces, as SCAFFOLD+FedAvg"),
    (("compare", "digits", "FedAvg,FedAdam"), "is no method: give methods one by one, as FedAvg FedAdam"),
    (("run", "digits", "FedAvg", "FedAdam"), "(FedAdam): several methods are for `fedsolve compare`"),
    ((*RUN[:2], "fedavg"), "error: unknown algorithm 'fedavg': did you mean 'FedAvg'?\n"),
    ((*RUN[:2], "Nadam"), "Known: AFL, "),
    (("run", "", "FedAvg"), "no task"),
    ((*RUN, "--out", "a\0b"), "a path contains a null byte"),
    ((*RUN, "--batch-size", "1" * 5000), "must be an integer or 'full'"),
    ((*RUN, "--set", "client_lr={}"), "client_lr = {} must be a table with a schedule: exponential, "),
    ((*RUN, "--set", "client_lr={schedule=[1], initial=1}"), "unknown schedule of FedAvg: client_lr '[1]'"),
    ((*RUN, "--set", PLATEAU + "}"), "reduce_on_plateau needs patience"),
    ((*RUN, "--set", PLATEAU + ", patience=0}"), "patience = 0 must be finite and >= 1"),
    ((*RUN, "--set", PLATEAU + ", patience=true}"), "reduce_on_plateau: patience = True must be a number"),
    (("run", "libsvm", "FedAvg", "--task-set", "name=zzz"), "unknown option of the task libsvm 'name'"),
    (("reproduce", "lasso-1", "--out", "/dev/null/x"), "cannot write to /dev/null/x: /dev/null is a file"),
    ((*SWEEP, "--grid", "client_lr=1,2", "--seeds", "0"), "--seeds 0 must be at least 1"),
    ((*RUN[:2], "SCAFFOLD+SCAFFOLD", *SMALL), "SCAFFOLD+SCAFFOLD: SCAFFOLD comes twice: once is enough"),
    ((*RUN[:2], "SCAFFOLD+FedProx+SCAFFOLD", *SMALL), "SCAFFOLD comes twice: once is enough"),
    ((*RUN[:2], "FedProx+" * 300 + "FedAvg", *SMALL), "FedProx comes twice: once is enough"),
    ((*RUN, "--devices", "2000000000"), "devices = 2000000000 must be between 1 and"),
    ((*RUN, "--rounds", "2" * 30), "must be < 2147483648"),
    ((*RUN, "--set", "client_lr=" + "9" * 400), "must be finite and > 0"),
    ((*RUN, "--set", "client_lr=" + "9" * 5000), "9999 ...' is not a value"),
    ((*RUN, "--set", "client_lr=1e400"), "client_lr = inf must be finite and > 0"),
    ((*RUN, "--config", "/dev/zero"), "cannot read the configuration /dev/zero: it is no regular file"),
    ((*SWEEP, "--grid", "client_lr=1,2", "--seeds", "2000000000"), "are 4,000,000,000 runs, more than the 20,000"),
    ((*SWEEP, "--grid", "client_lr=1,2", "--seeds", "9" * 5000), "must be how many, as 5, or which"),
    ((*SWEEP, "--grid", "client_lr=1:2:" + "9" * 5000), "is not a range"),
    ((*SWEEP, "--grid", "client_lr=1e-3:1:10000log", "--grid", "server_lr=1e-3:1:10000log"),
     "10,000 x 10,000 settings with 1 seed are 100,000,000 runs, more than the 20,000 of one sweep"),
    (("cite", "nowhere"), "No such file"),
]  # fmt: skip


@pytest.mark.full_rows(" FedFW --rounds 3 --set constraint={name='L1Ball', radius=1}")
@pytest.mark.parametrize(("arguments", "message"), CALLS, ids=[" ".join(c[0])[-60:] for c in CALLS])
def test_bad_input_is_one_line_and_exit_code_2(call, arguments, message):
    ended = call(*arguments)
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.count("\n") == 1
    assert ended.err.startswith("error: ")
    assert message in ended.err
    assert len(ended.err) < 2100  # whatever was typed
    assert not list(Path().iterdir())


def test_bad_input_as_json_is_one_document(call):
    ended = call(*RUN, "--rounds", "0", "--json")
    assert ended.code == 2
    assert ended.document == {
        "status": "error", "exit_code": 2, "error": "command line: run.rounds = 0 must be >= 1",
    }  # fmt: skip


GOOD = 'task = "digits"\n[[method]]\nname = "FedAvg"\n'
FILES = [
    ('task = "digits', "not valid TOML: "),
    ("\xff", None),
    ("", "no task"),
    ('task = "digits"', "no method"),
    ('task = "digits"\nmethod = []', "method = [] must be given at least once"),
    ('task = "digits"\nmethod = {name = "FedAvg"}', "method = {'name': 'FedAvg'} must be a list of tables"),
    ('task = "digits"\n[[method]]\nlabel = "a"', "method 1: name is missing"),
    ("task = 3\n" + GOOD.split("\n", 1)[1], "task = 3 must be a text"),
    ("tasks = 3\n" + GOOD, "unknown key 'tasks': did you mean 'task'?"),
    (GOOD + "setings = {}", "unknown key in method 1 'setings': did you mean 'settings'?"),
    (GOOD + "[run]\nround = 3", "unknown key in run 'round': did you mean 'rounds'?"),
    (GOOD + '[run]\nrounds = "3"', "run.rounds = '3' must be an integer"),
    (GOOD + "[run]\nrounds = 3.0", "run.rounds = 3.0 must be an integer"),
    (GOOD + "[run]\nrounds = true", "run.rounds = True must be an integer"),
    (GOOD + "[run]\nrounds = 0\nseed = -1", "run.rounds = 0 must be >= 1 (and 1 more)"),
    (GOOD + "[run.more]\na = 1", "unknown key in run 'more'"),
    ('task = "digits"\nrun = 3\n[[method]]\nname = "FedAvg"', "run = 3 must be a table"),
    (GOOD + "[run]\nclients_per_round = 2\nparticipation = 0.5", "not both"),
    (GOOD + "[task_options]\npartition = {name = 'dirichlet', alpha = 'x'}", "alpha = 'x' must be a number"),
    (GOOD + "[task_options]\npartition = {name = 'dirichlet'}", "partition dirichlet needs alpha"),
    (GOOD + "[[method]]\nname = 'FedAvg'", "two methods are called 'FedAvg'"),
    (GOOD + "settings = {client_lr = " + "9" * 400 + "}", "must be finite and > 0"),
    (GOOD + "settings = {client_lr = " + "9" * 5000 + "}", "not valid TOML: "),
    (GOOD + "settings = " + "[" * 9999, "not valid TOML: "),
    ("#" * 2**20 + "\n" + GOOD, "c.toml has 1,048,620 bytes: a configuration has at most 1,048,576"),
    (GOOD + "[[method]]\nname = 'FedExP'", "2 methods (FedAvg, FedExP): name one after the task"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), FILES)
def test_a_bad_file_is_one_line_and_exit_code_2(call, text, message):
    Path("c.toml").write_bytes(text.encode("latin-1"))
    ended = call("run", "--config", "c.toml")
    assert ended.code == 2
    assert ended.out == ""
    assert ended.err.count("\n") == 1
    assert (message or "not in UTF-8") in ended.err
    assert [p.name for p in Path().iterdir()] == ["c.toml"]


def test_no_seeds_are_one_line(call):
    Path("c.toml").write_text(GOOD + "[sweep]\nseeds = []\ngrid = {client_lr = [0.1]}")
    ended = call("sweep", "--config", "c.toml")
    assert (ended.code, ended.out, ended.err.count("\n")) == (2, "", 1)
    assert "seeds = []: give at least one" in ended.err


def test_an_endless_configuration_is_not_read(call):
    os.mkfifo("pipe.toml")
    for given in (("cite", "pipe.toml"), ("run", "--config", "pipe.toml")):
        ended = call(*given)
        assert (ended.code, ended.out) == (2, "")
        assert ended.err == "error: cannot read the configuration pipe.toml: it is no regular file\n"


def test_no_more_devices_are_asked_for_than_there_are_cores(monkeypatch):
    asked = {}
    monkeypatch.setattr(jax.config, "update", asked.__setitem__)
    monkeypatch.delenv("JAX_NUM_CPU_DEVICES", raising=False)
    start_jax(1000)
    assert asked["jax_num_cpu_devices"] == cores()


@pytest.mark.full_rows("error0")
@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 9 GiB"), RuntimeError("RESOURCE_EXHAUSTED: no 9 GiB.")]
)
def test_what_does_not_fit_the_memory_is_one_line(call, monkeypatch, error):
    monkeypatch.setattr(scheduler, "run_single", lambda *a, **k: (_ for _ in ()).throw(error))
    ended = call(*RUN, "--out", "r")
    assert ended.code == 2
    assert "not enough memory: " in ended.err.splitlines()[-1]
    assert "9 GiB: take a smaller --chunk" in ended.err.splitlines()[-1]


def test_a_problem_in_a_file_names_the_file():
    Path("c.toml").write_text(GOOD + "[run]\nrounds = 0")
    with pytest.raises(InvalidInput, match=r"^c\.toml: run\.rounds"):
        parse(read_toml("c.toml"), "c.toml")


@pytest.mark.full
def test_a_folder_that_holds_a_run_is_refused(call, finished):
    finished(*RUN)
    before = Path("r/checkpoint.safetensors").read_bytes()
    ended = call(*RUN, "--out", "r")
    assert ended.code == 2
    assert "fedsolve run --resume r" in ended.err
    assert Path("r/checkpoint.safetensors").read_bytes() == before


def test_a_folder_in_use_is_refused(call, finished):
    finished(*RUN)
    config = Path("r/config.toml").read_bytes()
    with locked(Path("r")):
        ended = call("run", "--resume", "r", "--rounds", "9")
    assert ended.code == 2
    assert "in use by another run" in ended.err
    assert Path("r/config.toml").read_bytes() == config
    with locked(Path("empty")):
        assert "in use by another run" in call(*RUN, "--out", "empty").err


@pytest.mark.parametrize("out", ["file", "file/below", "runs"])
def test_a_folder_that_cannot_be_written_is_refused(call, out):
    """Nor is `runs`, below which a folder is where no other is asked for."""
    Path(out.partition("/")[0]).write_text("")
    ended = call(*RUN, *(("--out", out) if out != "runs" else ()))
    assert ended.code == 2
    assert ended.err.splitlines()[-1].startswith(f"error: cannot write to {out}")


@pytest.mark.full
def test_the_checkpoint_of_another_algorithm_is_refused(call, finished):
    finished(*RUN)
    config = Path("r/config.toml")
    config.write_text(config.read_text().replace("client_lr = 0.1", "client_lr = 0.2"))
    ended = call("run", "--resume", "r", "--rounds", "5")
    assert ended.code == 2
    assert "algorithm = " in ended.err


@pytest.mark.parametrize("content", [b"", b"garbage" * 9, None])
def test_a_damaged_checkpoint_is_refused(call, finished, content):
    finished(*RUN)
    path = Path("r/checkpoint.safetensors")
    path.write_bytes(path.read_bytes()[:-9] if content is None else content)
    ended = call("run", "--resume", "r", "--rounds", "5")
    assert ended.code == 2
    assert "corrupt" in ended.err


def test_damaged_records_are_refused_by_show(call, finished):
    finished(*RUN)
    Path("r/history.json").write_text("{")
    ended = call("show", "r")
    assert ended.code == 2
    assert ended.err.startswith("error: r/history.json: not the JSON of a history")


def test_resume_takes_nothing_but_more_rounds(call, finished):
    finished(*RUN)
    assert "--seed does not go with --resume" in call("run", "--resume", "r", "--seed", "1").err
    assert "TASK does not go with --resume" in call("run", "digits", "--resume", "r").err
    ended = call("run", "--resume", "r", "--rounds", "2")
    assert (ended.code, "give more" in ended.err) == (2, True)


# What is refused only once a run has a folder leaves no trace of it: the mended command finds it as it was.

PRIVATE = ("clip_norm=1", "noise_multiplier=1", "population=4", "cohort=3", "delta=0.1", "weighting=uniform")
DP = ("run", "digits", "DP+FedAvg", *SMALL, *(f"--set={setting}" for setting in PRIVATE), "--out", "here")
LATE_SWEEP = ("sweep", "digits", "FedAvg", *SMALL, "--grid", "client_lr=0.1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (DP, "DP accounts for"),
        ((*LATE_SWEEP, "--validation", "1e-9"), "holds out no example"),
        ((*LATE_SWEEP, "--validation", "1e-9", "--out", "here"), "holds out no example"),
    ],
)
def test_refused_before_there_is_a_folder(call, arguments, message):
    ended = call(*arguments)
    assert ended.code == 2
    assert message in ended.err
    assert not list(Path().iterdir())


COMMANDS = {
    "run": ("run", "digits", "FedAvg", *SMALL),
    "compare": ("compare", "digits", "FedAvg", "FedExP", *SMALL),
    "sweep": LATE_SWEEP,
}


@pytest.mark.parametrize("error", [InvalidInput("no"), KeyError("a bug")], ids=["refused", "bug"])
@pytest.mark.parametrize("out", [(), ("--out", "here")], ids=["", "out"])
@pytest.mark.parametrize("command", COMMANDS)
def test_refused_when_there_is_a_folder(call, monkeypatch, command, out, error):
    """By the engine, say, or by a loss that raises: the folder is gone again."""

    def refuse(*args, **options):
        assert list(Path().rglob("config.toml"))
        raise error

    for module in (fedsolve.engine.scheduler, fedsolve.engine.scheduler):
        monkeypatch.setattr(module, "prepare", refuse)
    monkeypatch.setattr(fedsolve.cli.runs, "run_sweep", refuse)
    try:
        assert call(*COMMANDS[command], *out).code != 0
    except KeyError:
        assert isinstance(error, KeyError)
    assert not list(Path().iterdir())


def fail_in_folder(error, config="new", more=()):
    with restore_on_error(Path("r")):
        with locked(Path("r")):
            for name, text in {"config.toml": config, **dict(more)}.items():
                (Path("r") / name).parent.mkdir(parents=True, exist_ok=True)
                (Path("r") / name).write_text(text)
        raise error


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "r"


def test_a_refused_continuation_leaves_the_configuration(here):
    """Such as one of fewer rounds than are done: the configuration of the run stays that of the run."""
    here.mkdir()
    (here / "config.toml").write_text("old")
    (here / LATE_RUN.file).write_text("kept")
    with pytest.raises(InvalidInput):
        fail_in_folder(InvalidInput("no"), more={"FedAvg/config.toml": "new"})
    assert sorted(p.name for p in here.iterdir()) == [LATE_RUN.file, "config.toml"]
    assert (here / "config.toml").read_text() == "old"


@pytest.mark.parametrize(
    "error", [InvalidInput("disk full"), Interrupted("ctrl-c"), Diverged("round 3"), SystemExit()]
)
def test_what_ran_stays(here, error):
    """With a checkpoint of its own it can be resumed, whatever ended it; interrupted before that, from the start."""
    more = {LATE_RUN.file: "new"} if isinstance(error, InvalidInput) else {}
    with pytest.raises(type(error)):
        fail_in_folder(error, more=more)
    assert (here / "config.toml").read_text() == "new"


def test_an_empty_folder_of_the_user_stays(here):
    here.mkdir()
    with pytest.raises(InvalidInput):
        fail_in_folder(InvalidInput("no"))
    assert list(here.iterdir()) == []


def test_a_folder_that_another_run_holds_is_left_alone(here):
    with locked(here):
        (here / "config.toml").write_text("another's")
        with pytest.raises(InvalidInput, match="in use"):
            fail_in_folder(InvalidInput("no"))
    assert (here / "config.toml").read_text() == "another's"


LATE_PLATEAU = "={schedule='reduce_on_plateau', initial=0.1, metric='nope', patience=3}"


@pytest.mark.full_rows("arguments1-unknown metric", "arguments3-unknown metric")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "digits", "FedPer", *SMALL, "--set", "leaves=nope"), "no leaf of the model"),
        (("run", "digits", "FedAvg", *SMALL, "--set", f"client_lr{LATE_PLATEAU}"), "unknown metric"),
        (
            ("run", "digits", "FedAvg", *SMALL, "--seeds", "2", "--set", f"client_lr{LATE_PLATEAU}"),
            "unknown metric",
        ),
        ((*LATE_SWEEP, "--set", f"server_lr{LATE_PLATEAU}"), "unknown metric"),
        (("run", "digits", "FedAvg", *SMALL, "--systems", "nope"), "systems"),
    ],
)
def test_refused_before_the_rounds_are_compiled(call, arguments, message):
    ended = call(*arguments)
    assert ended.code == 2
    assert message in ended.err
    assert "compiling" not in ended.err


def test_every_method_of_a_comparison_is_looked_at_before_the_first_is_run(call):
    Path("c.toml").write_text(
        'task = "digits"\n[task_options]\nnum_clients = 4\nmodel = "softmax"\n[run]\nrounds = 3\n'
        '[[method]]\nname = "FedAvg"\n[[method]]\nname = "FedPer"\n[method.settings]\nleaves = "nope"\n'
    )
    ended = call("compare", "--config", "c.toml", "--out", "here")
    assert ended.code == 2
    assert "no leaf of the model" in ended.err
    assert "FedAvg: " not in ended.err
    assert not Path("here").exists()
