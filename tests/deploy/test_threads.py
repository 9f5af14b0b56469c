"""What processes of a machine take: threads of PyTorch, a share of the cores each node, and memory that is freed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


FREED = """
import resource, sys
import numpy as np
from fedsolve.deploy.host import return_freed_memory

def held():  # MB
    pages = open("/proc/self/statm").read().split()[1]
    return int(pages) * resource.getpagesize() / 2**20

if sys.argv[1] == "returned":
    return_freed_memory()
before, large = held(), np.ones(2**21)  # after whose end glibc takes smaller ones from its heap
del large
arrays = [np.ones(2**18) for _ in range(64)]  # 128 MB
last = arrays[-1]  # lies above all others
del arrays
print(held() - before)
"""


@pytest.mark.full
@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the memory of a process is read as on Linux"
)
def test_freed_arrays_go_back_to_the_system(subprocess_env):
    """A process that holds 2 MB of 128, and one that does not ask for it, which has most of them still."""
    found = {}
    for how in ("returned", "kept"):
        command = [sys.executable, "-c", FREED, how]
        found[how] = float(
            subprocess.run(command, env=subprocess_env, capture_output=True, check=True).stdout
        )
    assert found["returned"] < 20
    assert found["kept"] > 100
