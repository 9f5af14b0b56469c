"""The table of bytes in docs/composite.md is what the engine counts, and what encoded messages are long."""

import re
from pathlib import Path

import jax
import numpy as np
import pytest

import fedsolve as fs
from fedsolve.engine.options import RunOptions
from fedsolve.engine.placement import plan, put_on_devices
from fedsolve.engine.resolve import resolve
from fedsolve.geometry import L1, KSupportBall, L1Ball, L2Ball, LInfBall, NuclearBall
from fedsolve.tasks import MLP, CrossEntropy, Examples

PAGE = (Path(__file__).parents[2] / "docs" / "composite.md").read_text()
MODEL = MLP((784, 900, 300, 62))
ROWS = {
    "`FedAvg` |": lambda: fs.FedAvg(0.1),
    "`FedDualAvg` |": lambda: fs.FedDualAvg(L1(0.1), 0.1),
    r"`FedFW`, $\ell_1$ ball": lambda: fs.FedFW(L1Ball(1e6)),
    r"`FedFW`, one $\ell_1$ ball per leaf": lambda: fs.FedFW(L1Ball(1e6).each()),
    "`FedFW`, $k$-support": lambda: fs.FedFW(KSupportBall(1e6, 100)),
    "`FedFW`, nuclear": lambda: fs.FedFW(NuclearBall(1e6).on("weight") + L2Ball(1.0).on("bias")),
    r"`FedFW`, $\ell_\infty$": lambda: fs.FedFW(LInfBall(10.0)),
    r"`FedFW`, $\ell_2$": lambda: fs.FedFW(L2Ball(1e6)),
}


@pytest.fixture(scope="module")
def task():
    client = Examples(np.zeros((2, 784), np.float32), np.zeros(2, np.int32))
    data = fs.FederatedData.from_clients([client] * 3)
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    zeros = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), shapes)
    return fs.Task("bytes", lambda key: zeros, CrossEntropy(MODEL), data)


@pytest.mark.full_rows("`FedFW`, nuclear")
@pytest.mark.parametrize("row", ROWS)
def test_bytes_of_a_client(row, task):
    """The row's two numbers are the sizes of the message and of the broadcast."""
    (line,) = [line for line in PAGE.splitlines() if line.startswith(f"| {row}")]
    up, down = (int(cell.replace(",", "")) for cell in re.findall(r"\| +([\d,]+) +(?=\|)", line)[-2:])
    requested = resolve(ROWS[row](), task, RunOptions(rounds=1, local_steps=1), None)
    sent = plan(requested, put_on_devices(requested)).traffic
    assert sent.up == (up,)
    assert sent.down == down
