"""PyTorch's threads where a machine has several nodes: a share of the cores each, unless somebody said otherwise."""

from __future__ import annotations

import pytest
import torch

from fedsolve.cli.federation.local import LocalFederation
from fedsolve.deploy import host
from fedsolve.deploy.client.app import _make


@pytest.fixture
def machine(monkeypatch):
    """A machine of 8 cores with 3 nodes, on which PyTorch takes all cores; what a call of ours sets is kept."""
    counts = [8]
    monkeypatch.setattr(host.os, "sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr(host, "nodes_here", lambda: 3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: counts[-1])
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    monkeypatch.delenv(host.VARIABLE, raising=False)
    host.share_threads.cache_clear()
    yield counts
    host.share_threads.cache_clear()


def test_nodes_of_one_machine_share_its_cores(machine):
    assert [host.share_of_cores(n) for n in (0, 1, 2, 3, 8, 9)] == [8, 8, 4, 2, 1, 1]
    host.share_threads()
    assert machine == [8, 2]


def test_it_is_done_once_and_before_the_owners_code(machine):
    seen = []

    def oracle_for(node):
        seen.append(torch.get_num_threads())
        torch.set_num_threads(5)
        raise ValueError("the data are elsewhere")

    for _ in range(2):
        with pytest.raises(ValueError, match="elsewhere"):
            _make(oracle_for, None)
    assert seen == [2, 5]


@pytest.mark.parametrize("owner", ["environment", "smaller number"])
def test_what_the_owner_or_the_environment_says_stands(machine, monkeypatch, owner):
    if owner == "environment":
        monkeypatch.setenv(host.VARIABLE, "8")
    else:
        torch.set_num_threads(1)
    host.share_threads()
    assert machine == ([8] if owner == "environment" else [8, 1])


def test_a_local_federation_shares_the_cores(machine, monkeypatch, tmp_path):
    assert LocalFederation(tmp_path, 3).env[host.VARIABLE] == "2"
    monkeypatch.setenv(host.VARIABLE, "4")
    assert LocalFederation(tmp_path, 3).env[host.VARIABLE] == "4"


def test_nodes_are_counted_by_the_programs_that_run(tmp_path):
    commands = [
        ["/usr/bin/python", "/env/bin/flower-supernode", "--insecure"],
        ["flower-supernode"],
        ["/usr/bin/python", "/env/bin/flower-superlink"],
        ["grep", "-r", "flower-supernode"],
        [],
    ]
    for number, words in enumerate(commands):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "cmdline").write_bytes("\0".join(words).encode())
    (tmp_path / "9").mkdir()  # has ended: nothing to read
    assert host.nodes_here(tmp_path) == 2
    assert host.nodes_here(tmp_path / "none") == 0
