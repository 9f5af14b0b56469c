"""Sites by name: what a node calls itself stands in the log, the record and the files, and changes nothing else."""

import json
import logging
import re

import jax
import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, RecordDict

import fedsolve as fs
from deploy_small import PROBLEM, deploy, start
from fake_grid import FakeGrid
from fedsolve.core.errors import Unavailable
from fedsolve.deploy import run_log
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.server.server import server_app
from fedsolve.deploy.site_names import site_of
from fedsolve.results.clients import read_client_metrics
from fedsolve.results.record_files import MODEL, leaves_by_path, write_model

NORTH = {"client-id": 0, "site": "north"}
SOUTH = {"client-id": 1, "data": "/data/south.csv"}
TWICE = {"client-id": 2, "site": "north"}
SITES = [NORTH, SOUTH, TWICE, 3, 4, 5]


def test_names_stand_everywhere_and_change_no_bit(tmp_path, capsys):
    """Two names, one of them twice, a reply that does not count, and the same run without names."""

    def spoil(node, kind, content):
        if node == 102 and kind == "train":
            content["reply"] = ConfigRecord(dict(content["reply"]) | {"round": 7})
        return content

    settings = {"rounds": 1, "client_metrics": "loss", "min_replies": 1, "tamper": spoil}
    named, history, _ = deploy(fs.FedAvg(0.1), tmp_path / "a", clients=SITES, **settings)
    log = capsys.readouterr().out
    assert "client 0 is connected: north\n" in log
    assert "client 2 is connected\n" in log
    assert "client 2 keeps its number: its site is called north, as that of client 0: give each" in log
    assert "round 1: south does not count: " in log
    assert history.settings["sites"] == "north, south, client 2, client 3, client 4, client 5"
    assert history.settings["algorithm"] == "FedAvg()"  # as written, with its default rate
    measured = read_client_metrics(tmp_path / "a" / "server")[1]
    assert measured.names == ("north", "south", "client 2", "client 3", "client 4", "client 5")
    [line] = (tmp_path / "a" / "server" / run_log.ROUNDS).read_text().splitlines()
    entry = json.loads(line)
    assert entry["reasons"][0].startswith("south: ")
    whose = {0: "north"}.get(entry["largest_norm_client"])
    assert entry.get("largest_norm_site") == whose
    plain, without, _ = deploy(fs.FedAvg(0.1), tmp_path / "b", **settings)
    jax.tree.map(np.testing.assert_array_equal, named, plain)
    assert "sites" not in without.settings
    assert without.rounds["bytes_up"].tolist() == history.rounds["bytes_up"].tolist()
    page = (tmp_path / "a" / "server" / "page.html").read_text()
    assert str(tmp_path) not in page
    for name in measured.names:
        assert re.search(f'<th scope="row"[^>]*>{name}</th>', page)


@pytest.mark.parametrize("site", ["", "a\nb", " north", "client 3", "x" * 65, 7])
def test_what_is_no_name(site, tmp_path):
    """Refused by the node itself, and by the server, whoever sends it."""
    with pytest.raises(fs.InvalidInput, match="is not a name of a site: "):
        site_of({"site": site})

    def forge(node, kind, content):
        if node == 101 and kind == "query":
            content["client"] = ConfigRecord(dict(content["client"]) | {"site": site})
        return content

    with pytest.raises(fs.FedsolveError, match=r"5 of 6 clients connected .* is not a name of a site: "):
        deploy(fs.FedAvg(0.1), tmp_path, tamper=forge)


def test_a_file_may_be_called_anything():
    assert (
        site_of({"data": f"/data/{'x' * 65}.csv"})
        == site_of({"data": "/data/a.parquet"})
        == site_of({})
        == ""
    )
    assert site_of({"data": "/data/a.csv", "site": "b"}) == "b"


def test_where_a_node_has_its_data(tmp_path):
    """`node.data` of an `oracle_for`, and what is said where the node's configuration lacks it."""
    seen = []

    def oracle_for(node):
        seen.append(node.data)
        return fs.flower.JaxOracle.of_task(PROBLEM, node.client)

    with pytest.raises(
        fs.FedsolveError, match="client 1: the node does not say where its data are: start it with"
    ):
        deploy(fs.FedAvg(0.1), tmp_path, app=client_app(oracle_for), clients=[SOUTH | {"client-id": 0}, 1])
    assert str(seen[0]) == "/data/south.csv"


def test_all_have_refused(tmp_path, capsys, caplog):
    """The run ends at once, in one line; with one client that has not refused it waits as before."""

    def oracle_for(node):
        raise fs.InvalidInput("class_weight is not supported")

    app = server_app(fs.FedAvg(0.1), {"w": np.zeros(2)}, population=2, rounds=1, out=str(tmp_path / "run"))
    grid = FakeGrid(client_app(oracle_for), [0, 1], tmp_path)
    with pytest.raises(fs.InvalidInput) as ended, caplog.at_level(logging.ERROR, "flwr"):
        app(grid, Context(1, 1, {}, RecordDict(), {"connect-seconds": 60.0}))
    said = (
        "all 2 clients have refused: client 0: class_weight is not supported; client 1: class_weight is not"
    )
    assert str(ended.value).startswith(said)
    assert ended.value.exit_code == 2
    assert f"fedsolve: error: {said}" in capsys.readouterr().out
    assert (tmp_path / "run" / run_log.FAILED).read_text().startswith(said)
    # what Flower's runtime logs then is not said again, and of any other error it is
    log = logging.getLogger("flwr")
    log.error("%s raised an exception", "ServerApp", exc_info=ended.value)
    log.error("Exit Code: 201\nAn unhandled exception occurred")
    log.error("ServerApp raised", exc_info=RuntimeError("a bug"))
    assert [record.getMessage() for record in caplog.records] == ["ServerApp raised"]


def test_one_that_refuses_is_waited_for(tmp_path):
    """Five of six refuse: the sixth may be mended and started again until the deadline."""

    def refuse(node, kind, content):
        return content if node == 101 else RecordDict({"refused": ConfigRecord({"why": "no", "lost": False})})

    with pytest.raises(Unavailable, match=r"1 of 6 clients connected within 0\.2 s"):
        deploy(fs.FedAvg(0.1), tmp_path / "a", tamper=refuse)
    with pytest.raises(
        Unavailable, match=r"0 of 6 clients connected within 0\.2 s"
    ):  # five are not there yet
        deploy(fs.FedAvg(0.1), tmp_path / "b", clients=[7])


@pytest.mark.parametrize("buffers", [{}, {"mean": np.arange(2.0)}], ids=["none", "buffers"])
def test_a_model_has_its_own_names_in_a_loaded_folder(buffers, tmp_path):
    """As a run has just written it, and as earlier versions did, which did not say what the file holds."""
    params = {"coef_": np.ones((1, 3)), "intercept_": np.zeros(1)}
    out = tmp_path / "server"
    deploy(fs.FedAvg(0.1), tmp_path, rounds=1)
    assert set(fs.load(out).params) == set(leaves_by_path(start()))
    for facts in ({"holds": "model, buffers"}, {}):
        both = {"model": params, "buffers": buffers}
        write_model(out / MODEL, both, {"task": "federation", "method": "FedAvg", **facts})
        loaded = fs.load(out)
        assert sorted(loaded.params) == ["coef_", "intercept_"]
        np.testing.assert_array_equal(loaded.params["coef_"], params["coef_"])
        assert (loaded.buffers is None) == (not buffers)
        assert list(loaded.buffers or {}) == list(buffers)
