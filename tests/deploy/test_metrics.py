"""What Prometheus scrapes: the numbers of the log of rounds and of the clients, nothing that a client wrote."""

import json
import re
import socket
import sys
import urllib.request
from importlib import resources

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import fedsolve as fs
from deploy_small import deploy_quick as deploy
from fedsolve.cli.processes import free_port, is_listening
from fedsolve.deploy import codec
from fedsolve.deploy.metrics import PHASES, RunMetrics, check_address
from fedsolve.deploy.run_log import ROUNDS
from fedsolve.deploy.status import STATUS, Cause, ClientStatuses, read_status


def values(text):
    """Value by name and label."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(s.name, *s.labels.values()): s.value for s in samples}


def exposed(metrics):
    registry = CollectorRegistry()
    registry.register(metrics)
    return generate_latest(registry).decode()


def scrape(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def refuses(node, kind, content):
    """Client 2, by words that would be labels of their own."""
    if kind == "train" and node == 103:
        return codec.refusal(fs.InvalidInput('mine{cause="everything"} 1'))
    return content


def test_a_run_is_scraped_while_it_goes_on(tmp_path, capsys):
    """Three evaluations of two rounds, while somebody keeps a connection open and says nothing."""
    port, seen, idle = free_port(), [], socket.socket()

    def look(evaluated):
        if not seen:
            idle.connect(("127.0.0.1", port))
        seen.append(values(scrape(port)))

    method = fs.privacy.LocalDifferentialPrivacy(fs.FedExP(0.1), 1.0, epsilon=2.0, delta=1e-5)
    settings = {
        "rounds": 3,
        "min_replies": 1,
        "tamper": refuses,
        "clients": [{"client-id": 0, "site": "north"}, *range(1, 6)],
    }
    with idle:
        _, history, _ = deploy(
            method, tmp_path, metrics_address=str(port), callbacks=[look], eval_every=1, **settings
        )
    assert not is_listening(port)
    assert f"fedsolve: metrics: http://127.0.0.1:{port}/metrics\n" in capsys.readouterr().out
    assert "metrics_address" not in history.settings
    first, *_, last = seen
    rows = [json.loads(line) for line in (tmp_path / "server" / ROUNDS).read_text().splitlines()]
    assert (first["fedsolve_rounds_total",], last["fedsolve_rounds_total",]) == (
        0,
        2,
    )  # the third is not over yet
    assert (last["fedsolve_rounds_done",], last["fedsolve_rounds_planned",]) == (2, 3)
    assert last["fedsolve_orders_total",] == 12
    assert last["fedsolve_replies_total",] == sum(row["replies"] for row in rows[:2]) == 10
    for way in ("up", "down"):
        assert last["fedsolve_bytes_total", way] == sum(row[f"bytes_{way}"] for row in rows[:2]) > 0
    assert last["fedsolve_round_seconds_total",] == pytest.approx(sum(row["seconds"] for row in rows[:2]))
    assert {key[1]: n for key, n in last.items() if key[0] == "fedsolve_rejected_total"} == {
        cause.value: 2 if cause is Cause.REFUSED else 0 for cause in Cause
    }
    assert {key[1] for key in last if key[0] == "fedsolve_phase_seconds_total"} == set(PHASES)
    assert last["fedsolve_epsilon",] == history.rounds["epsilon"][1] > history.rounds["epsilon"][0]
    assert last["fedsolve_clients_connected",] == 6
    # the third reply of client 2 was refused before the evaluation that follows it
    assert (
        last["fedsolve_client_consecutive_failures", "2"] == last["fedsolve_client_failures_total", "2"] == 3
    )
    assert last["fedsolve_client_consecutive_failures", "0"] == 0
    heard = read_status(tmp_path / "server" / STATUS).clients[0].last_heard
    assert first["fedsolve_client_last_heard_timestamp_seconds", "0"] < heard
    assert last["fedsolve_client_last_heard_timestamp_seconds", "0"] == pytest.approx(heard)
    labels = {label for key in last for label in key[1:]}
    assert labels == {*map(str, range(6)), *Cause, *PHASES, "up", "down", "LocalDP+FedExP", fs.__version__}


def test_a_port_in_use_is_refused_before_anything_starts(tmp_path, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(fs.InvalidInput) as refused:
            deploy(fs.FedAvg(0.1), tmp_path, metrics_address=f"127.0.0.1:{port}")
    said = f"metrics_address = '127.0.0.1:{port}' cannot be listened on (Address already in use): give another port"
    assert str(refused.value) == said
    assert capsys.readouterr().out == f"fedsolve: error: {said}\n"
    assert not (tmp_path / "server").exists()


def test_without_the_library(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(fs.InvalidInput, match=r"not installed: pip install 'fedsolve\[monitor\]'"):
        deploy(fs.FedAvg(0.1), tmp_path, metrics_address="9464")


@pytest.mark.parametrize(
    ("given", "address"),
    [("", None), (None, None), ("9464", "127.0.0.1:9464"), (9464, "127.0.0.1:9464"), ("0.0.0.0:80", "0.0.0.0:80"),
     ("[::1]:9464", "[::1]:9464"), ("a-b.example:1", "a-b.example:1")],
)  # fmt: skip
def test_addresses(given, address):
    assert check_address("metrics_address", given) == address


@pytest.mark.parametrize(
    "given", ["0", "65536", "-1", "host", ":9464", "1.5", True, 1.5, "a b:1", "http://a:1", "9464\n", "::1:9"]
)
def test_what_is_no_address(given, tmp_path):
    with pytest.raises(
        fs.InvalidInput, match=r"metrics_address = .* is no address: give a port of this machine"
    ):
        deploy(fs.FedAvg(0.1), tmp_path, metrics_address=given)


def test_the_seconds_of_phases_add_up():
    metrics = RunMetrics(ClientStatuses(1), "FedAvg", 7, 9)
    entry = {
        "round": 8,
        "seconds": 3.0,
        "asked": 1,
        "replies": 1,
        "bytes_up": 5,
        "bytes_down": 6,
        "causes": {},
        "epsilon": None,
    }
    metrics.round(entry | {"phases": {"wait": 1.0, "replies": 0.5, "lunch": 9.0}})
    metrics.round(entry | {"phases": {"wait": 1.25}})
    got = values(exposed(metrics))
    assert got["fedsolve_phase_seconds_total", "wait"] == 2.25
    assert got["fedsolve_phase_seconds_total", "replies"] == 0.5
    assert got["fedsolve_replies_total",] == 2
    assert ("fedsolve_phase_seconds_total", "lunch") not in got
    assert ("fedsolve_epsilon",) not in got


def test_the_dashboard_shows_the_metrics_that_there_are():
    """It is JSON; every expression names metrics of ours alone, and every metric is in one."""
    metrics = RunMetrics(ClientStatuses(2), "FedAvg", 0, 1)
    metrics._epsilon = 1.0
    exported = {f.name + "_total" * (f.type == "counter") for f in metrics.collect()}
    text = resources.files("fedsolve.deploy").joinpath("grafana.json").read_text()
    dashboard = json.loads(text)
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert set(re.findall(r"fedsolve_\w+", " ".join(expressions))) == exported
    labels = {"client", "cause", "phase", "direction", "method", "version"}
    shown = [target["legendFormat"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert set(re.findall(r"{{(\w+)}}", " ".join(shown))) == labels
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    squares = [(x, y) for p in dashboard["panels"] for g in [p["gridPos"]]
               for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])]  # fmt: skip
    assert len(set(squares)) == len(squares)
    assert max(x for x, _ in squares) < 24
