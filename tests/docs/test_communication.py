"""What docs/communication.md says is right where it was worked out by hand."""

from __future__ import annotations

import fedsolve as fs
from fedsolve.config.catalogue import ALGORITHMS
from fedsolve.deploy.communication import Field, examples, payload
from fedsolve.geometry import L1Ball


def test_every_method_is_there():
    assert set(examples()) >= set(ALGORITHMS)


def test_scaffold_by_hand():
    """Twice the model each way; c_i+ - c_i counts all alike whatever the weights."""
    found = payload(fs.SCAFFOLD(weighting="examples"))
    assert found.down == (
        Field("inner.params", "d numbers"),
        Field("inner.round", "a whole number"),
        Field("control", "d numbers"),
    )
    assert found.up == (
        Field("inner.delta", "d numbers", "mean by examples"),
        Field("inner.loss", "one number", "mean by examples"),
        Field("control_delta", "d numbers", "mean 1/|S|"),
    )
    assert not found.not_a_sum


def test_what_prevents_sums():
    assert "robust" in payload(fs.robust.Robust(fs.FedAvg(), fs.robust.Median())).not_a_sum
    assert "maximum" in payload(fs.FedLiLS(server="max")).not_a_sum
    frank_wolfe = payload(fs.FedFW(L1Ball(10.0)))
    assert "changes each message" in frank_wolfe.not_a_sum
    assert frank_wolfe.up == (
        Field("vertex", "a code (1 integer)", "changed by the server, then mean 1/|S|"),
    )
    assert not payload(fs.FedDuAdam()).not_a_sum
