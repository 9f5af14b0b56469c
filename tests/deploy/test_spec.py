"""Methods as plain data: exact, for every method; nothing that was not trusted is built."""

import json

import jax
import numpy as np
import optax
import pytest

import fedsolve as fs
from conformance.entries import METHODS
from fedsolve.deploy.spec import from_spec, method_from_spec, to_spec
from fedsolve.engine.identity import describe


@pytest.mark.parametrize("name", METHODS)
def test_a_method_comes_back(name):
    """Through JSON text; equal field by field, arrays by their bytes."""
    method = METHODS[name](0.3)
    back = method_from_spec(json.loads(json.dumps(to_spec(method))))
    assert describe(back) == describe(method)
    assert jax.tree.structure(back) == jax.tree.structure(method)


def test_numbers_are_exact():
    value = (0.1 + 0.2, np.float32(0.1), np.arange(6).reshape(2, 3), None, True, "x", {"a": 1})
    back = from_spec(json.loads(json.dumps(to_spec(value))))
    assert back[0] == 0.1 + 0.2
    assert back[1].dtype == np.float32
    assert back[1] == np.float32(0.1)
    np.testing.assert_array_equal(back[2], value[2])
    assert back[3:] == value[3:]


def test_what_cannot_be_told():
    local = fs.local.Optax(lambda learning_rate: optax.sgd(learning_rate), learning_rate=1.0)
    with pytest.raises(fs.InvalidInput, match="no importable name: clients cannot find it"):
        to_spec(fs.FedOpt(local, fs.rules.ServerSGD()))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"function": "os:system"}, "needs os, which this client does not trust"),
        ({"class": "subprocess:Popen", "fields": {"args": "true"}}, "needs subprocess, which"),
        ({"function": "fedsolve.files:os.system"}, "it is no part of one"),
        ({"function": "fedsolve.store:np.load"}, "it is no part of one"),
        ({"class": "fedsolve.engine.run:run", "fields": {}}, "it is no part of one"),
        ({"class": "fedsolve.report.history:History", "fields": {"label": 1}}, "differs from ours"),
        ({"function": "fedsolve.nothing:here"}, "is not installed here"),
        ({"what": 1}, "no method that can be read"),
    ],
)
def test_what_is_refused(spec, said):
    with pytest.raises(fs.InvalidInput, match=said):
        from_spec(spec)


def test_a_part_is_no_method():
    with pytest.raises(fs.InvalidInput, match="described a ServerSGD, not a method"):
        method_from_spec(to_spec(fs.rules.ServerSGD()))
