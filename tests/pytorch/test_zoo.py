"""The collection: every module and loss is translated, run in PyTorch with a note, or refused; and equals PyTorch."""

from __future__ import annotations

from contextlib import suppress

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from modules import declare_torchvision  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402
from zoo import ENTRIES  # noqa: E402
from zoo.entry import Entry  # noqa: E402
from zoo.judge import judge  # noqa: E402
from zoo.reference import drawn, made  # noqa: E402
from zoo.traces import without_trace  # noqa: E402

import fedsolve as fs  # noqa: E402


def rows(gate: bool) -> list[Entry]:
    return [entry for entry in ENTRIES if entry.gate is gate]


def check(entry: Entry, steps: tuple[int, ...]) -> None:
    for package in entry.needs:
        declare_torchvision()
        pytest.importorskip(package, reason=f"{package} is not installed")
    found = judge(entry, steps)
    assert entry.verdict.holds(found.kind, found.text), f"{found.kind}: {found.text}"
    assert "\n" not in found.text
    assert found.error <= entry.tolerance, (
        f"{found.where} is off by {found.error:.2g}; {found.text or 'no note'}"
    )


@pytest.mark.full_rows("spectral norm", "convolution")
@pytest.mark.parametrize("entry", rows(gate=True), ids=lambda e: e.name)
def test_chosen(entry: Entry) -> None:
    """A round of two steps: both of its gradients, the buffers after it and the test loss."""
    check(entry, (2,))


@pytest.mark.full
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_all(entry: Entry) -> None:
    check(entry, (2,) if entry.needs else (1, 2))  # the families are larger: one program for each


@pytest.mark.gate("second")
@pytest.mark.parametrize(
    "entries", [ENTRIES[i::4] for i in range(4)], ids=["first", "second", "third", "fourth"]
)
def test_an_oracle_leaves_no_trace(entries: list[Entry]) -> None:
    """Made of the whole collection but its large families; `judge` asks the same of tasks."""
    oracle = fs.flower.TorchOracle  # what it imports draws from NumPy
    for entry in entries:
        if entry.needs:
            continue
        module, loss = made(entry)
        batch = pytree.tree_map(torch.as_tensor, drawn(entry).test)
        with without_trace(module, loss, batch), suppress(fs.InvalidInput):
            oracle(module, loss, [batch])


def test_size() -> None:
    names = [entry.name for entry in ENTRIES]
    assert len(set(names)) == len(names)
    assert len(names) >= 150
    assert len(rows(gate=True)) >= 12
