"""Models over a federation's rows: those of `fs.stats`, plain and under secure sums; and what owners refuse."""

import numpy as np
import pytest
from flwr.app import Context, RecordDict

import fedsolve as fs
import printed
from fake_grid import FakeGrid
from fedsolve.cli.main import main
from fedsolve.core.errors import Unavailable
from fedsolve.deploy.analysis_job import from_words, to_words
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.run_log import FAILED
from fedsolve.deploy.server.server import server_app
from fedsolve.stats.linear_models import GlmRequest
from fedsolve.stats.questions import Request

pytest.importorskip("formulaic")
RNG = np.random.default_rng(0)
SITES = [
    {"age": RNG.normal(50, 10, n), "smoker": RNG.choice(["no", "yes", ""], n), "ill": RNG.integers(0, 2, n)}
    for n in (140, 60, 90, 120)
]
FORMULA = "ill ~ age + smoker"


def app_of(columns=lambda node: SITES[node.client], analyses=("glm",), **words):
    def no_model(node):
        raise AssertionError("statistics need no model")

    return client_app(no_model, statistics=columns, analyses=analyses, **words)


def analyse(folder, *, app=None, tamper=None, formula=FORMULA, schema=None, clients=(0, 1, 2, 3), **config):
    server = server_app(fs.FedAvg(0.1), {"w": np.zeros(1)}, rounds=1, population=4, schema=schema)
    asked = GlmRequest(formula, family="binomial").to_json()
    given = {"job": "analysis", "analysis": asked, "out": str(folder / "run"), "connect-seconds": 0.2}
    config = given | {"round-seconds": 0.1} | config
    grid = FakeGrid(app or app_of(), list(clients), folder / "nodes", tamper, None, config)
    server(grid, Context(1, 1, {}, RecordDict(), config))
    return fs.stats.load(folder / "run")


def test_plain_sums_give_the_bits_of_the_simulation(tmp_path, capsys):
    found = analyse(tmp_path)
    assert found.as_plain() == fs.stats.glm(SITES, FORMULA, family="binomial").as_plain()
    said = capsys.readouterr().out
    assert "fedsolve: smoker[T.yes]" in said
    assert said.count("fedsolve: sums for glm are asked of") == 4  # once at each node


def test_its_folder_is_read_by_every_command(tmp_path, capsys):
    """`show` prints the result; what reads runs says in one line what the folder holds."""
    found, folder = analyse(tmp_path), str(tmp_path / "run")
    capsys.readouterr()
    assert main(["show", folder]) == 0
    assert repr(found.summary()) in capsys.readouterr().out
    assert main(["show", folder, "--json"]) == 0
    text = capsys.readouterr().out
    assert printed.document(["show"], text)["result"] == found.as_plain()
    printed.document(["federate", "glm"], text)  # which prints the same
    held = "holds the result of an analysis, and no run"
    for command in (
        ["cite", folder],
        ["run", "--resume", folder],
        ["export", folder, "--to", "torch", "--out", "x.pt"],
    ):
        assert main(command) == 2
        assert held in (said := capsys.readouterr().err)
        assert said.count("\n") == 1
    with pytest.raises(fs.InvalidInput, match=held):
        fs.load(folder)
    for text in ("{", '{"kind": "Other"}', '{"kind": "GlmResult"}'):
        (tmp_path / "analysis.json").write_text(text)
        with pytest.raises(fs.InvalidInput, match=r"analysis\.json"):
            fs.stats.load(tmp_path)


def test_secure_sums_give_the_same_numbers(tmp_path):
    """To the rounding of fixed point; categories come from the app's schema."""
    path = tmp_path / "schema.toml"
    path.write_text(
        'target = "ill"\nclasses = [0, 1]\n[columns.age]\n[columns.smoker]\ncategories = ["no", "yes"]\n'
    )
    sums = app_of(min_sum=3)
    found = analyse(tmp_path, app=sums, schema=fs.data.Schema.read(path), secure=True)
    wanted = fs.stats.glm(SITES, FORMULA, family="binomial")
    np.testing.assert_allclose(found.coefficients, wanted.coefficients, rtol=1e-12)
    np.testing.assert_allclose(found.standard_errors, wanted.standard_errors, rtol=1e-12)
    assert (found.rows, found.rounds, found.sites) == (wanted.rows, wanted.rounds, wanted.sites)
    with pytest.raises(fs.InvalidInput, match="column smoker: under secure sums its categories must be in"):
        analyse(tmp_path / "no schema", app=sums, formula="ill ~ age + C(smoker)", secure=True)
    with pytest.raises(Unavailable, match="allows sums of at least 3 clients alone"):
        analyse(tmp_path / "plain", app=sums)


def test_words_of_sums_add_up():
    numbers = np.array([[0.1, -3e20, 1e-20, 0.0], [1 / 3, 3e20, -1.0, 2.0**69], [-0.1, 7.0, 5e-7, -1e-3]])
    total = from_words(sum(map(to_words, numbers)))
    np.testing.assert_allclose(total, [1 / 3, 7.0, -1.0 + 5e-7 + 1e-20, 2.0**69], rtol=1e-15, atol=2.0**-78)


def leaves(answers):
    """A node that is gone after so many answers about rows."""
    left = iter(range(answers))

    def tamper(node, kind, content):
        is_asked = kind == "query.analysis" and node == 104
        return None if is_asked and next(left, None) is None else content

    return tamper


def lies(node, kind, content):
    if kind == "query.analysis" and node == 104:
        content["numbers"]["bytes"].data = np.full(
            len(content["numbers"]["bytes"].data) // 8, np.nan
        ).tobytes()
    return content


def test_sites_that_refuse_leave_or_lie(tmp_path):
    """One that refuses or lies at first is left out with a note; one that leaves later ends the analysis."""

    def columns(node):
        if node.client == 2:
            raise fs.InvalidInput("/data/west.csv, line 3: column age is empty")
        return SITES[node.client]

    found = analyse(tmp_path, app=app_of(columns))
    others = [SITES[0], SITES[1], SITES[3]]
    wanted = fs.stats.glm(others, FORMULA, family="binomial")
    assert np.array_equal(found.coefficients, wanted.coefficients)
    assert any("client 2 does not take part: west.csv, line 3" in note for note in found.notes)
    bad = [*SITES[:3], SITES[3] | {"ill": np.full(120, 2.0)}]  # found once the outcome is looked at
    again = analyse(tmp_path / "outcome", app=app_of(lambda node: bad[node.client]))
    assert np.array_equal(
        again.coefficients, fs.stats.glm(SITES[:3], FORMULA, family="binomial").coefficients
    )
    assert "client 3 does not take part: outcome ill of the family binomial must be 0 or 1" in again.notes[-1]
    false = analyse(tmp_path / "lies", tamper=lies)
    assert np.array_equal(false.coefficients, again.coefficients)
    with pytest.raises(Unavailable, match=r"client 3 left in the middle of the analysis: .* begin again"):
        analyse(tmp_path / "leaves", tamper=leaves(2))
    assert "begin again" in (tmp_path / "leaves" / "run" / FAILED).read_text()


def test_owners_decide(tmp_path):
    """Which analyses, how many rows, how many questions; no noise-bound owner allows any."""
    with pytest.raises(fs.InvalidInput, match=r"no analysis 'glm' is allowed here"):
        analyse(tmp_path / "none", app=app_of(analyses=("cox",)))
    with pytest.raises(fs.InvalidInput, match="fewer than 200 rows"):
        analyse(tmp_path / "rows", app=app_of(min_rows=200), formula="ill ~ age")
    once = app_of(max_questions=2)  # of describing the columns, and of a model
    analyse(tmp_path, app=once)
    (tmp_path / "run").rename(tmp_path / "first")
    with pytest.raises((fs.InvalidInput, Unavailable), match="as often as its owner allows"):
        analyse(tmp_path, app=once)
    with pytest.raises(fs.InvalidInput, match="give statistics, too"):
        client_app(lambda node: None, analyses=("glm",))
    with pytest.raises(fs.InvalidInput, match="unknown analysis 'glmm': did you mean 'glm'"):
        app_of(analyses=("glmm",))


WRONG = ('{"kind": "GlmRequest", "outcome": 1}', '{"kind": "Design"}', '{"kind": "GlmRequest", "n": 1}')


@pytest.mark.parametrize("text", ["{", "[]", '{"kind": "LmRequest"}', *WRONG])
def test_an_analysis_from_a_configuration_is_checked(text):
    with pytest.raises((fs.InvalidInput, ValueError)):
        Request.from_json(text)
