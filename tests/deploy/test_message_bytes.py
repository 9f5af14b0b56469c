"""The bytes of requests and replies are those of earlier versions: nodes and servers may be of two of them."""

import hashlib

import numpy as np
import pytest
from flwr.common.serde import recorddict_to_proto

from fake_grid import over_the_wire
from fedsolve.deploy.codec import Expected, record_to_reply, record_to_request, to_record
from fedsolve.deploy.message import (
    EvaluateReply,
    EvaluateRequest,
    PartMetrics,
    TrainReply,
    TrainRequest,
)

BUFFERS = {"mean": np.arange(2, dtype=np.float32), "seen": np.array(3)}
ASKED = {
    "experiment": "good-1", "round": 3, "client": 1, "population": 4, "last_used_round": 2, "key": (7, 2**32 - 1),
    "method": {"class": "x", "fields": {"lr": 0.1}}, "signature": "['w'] float64[2]",
}  # fmt: skip
FIRST = ASKED | {"first_broadcast": b"first", "buffers": BUFFERS}
LATER = ASKED | {"first_broadcast": None, "buffers": {}}
METRICS = ("loss", "accuracy")
PARTS = {
    "train": PartMetrics(4, {"loss": 1.5, "accuracy": 0.5}, {"loss": 4, "accuracy": 3.5}),
    "validation": PartMetrics(2, {"loss": 1.0, "accuracy": 0.25}, {"loss": 2, "accuracy": 2}),
}
DIGESTS = {
    "81986614ebb9784e": TrainRequest(**FIRST, broadcast=b"abc", tracked_state=b"st"),
    "88cbb0e90183e75e": TrainRequest(**LATER, broadcast=b"abc", tracked_state=None),
    "be3043ca4a75695f": TrainReply("good-1", 3, 1, "sig", 12, b"message", BUFFERS),
    "84139c9bd77b9279": EvaluateRequest(**FIRST, metrics=METRICS, model=b"model", steps=2, solver={"a": 1}),
    "bb30ecc4cd75f153": EvaluateRequest(**LATER, metrics=("loss",), model=b"model", steps=0, solver=None),
    "a54b22fe6a23af77": EvaluateReply("good-1", 3, 1, 2, PARTS),
}


@pytest.mark.parametrize("digest", DIGESTS)
def test_bytes_are_as_they_were_and_come_back(digest):
    message = DIGESTS[digest]
    record = to_record(message)
    data = recorddict_to_proto(record).SerializeToString(deterministic=True)
    assert hashlib.sha256(data).hexdigest().startswith(digest)
    received = over_the_wire(record)
    if isinstance(message, TrainRequest | EvaluateRequest):
        back = record_to_request(type(message), received, BUFFERS)
    else:
        back = record_to_reply(type(message), received, Expected(7, BUFFERS, METRICS))
    for name, value in vars(message).items():
        if name == "buffers":
            assert value.keys() == back.buffers.keys()
            for buffer, numbers in value.items():
                np.testing.assert_array_equal(back.buffers[buffer], numbers)
        else:
            assert getattr(back, name) == value, name
