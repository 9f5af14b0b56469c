"""Methods as plain data: exact, for every method; nothing is built or called that is no part of one."""

import base64
import dataclasses
import inspect
import json
import sys

import jax
import numpy as np
import optax
import pytest

import fedsolve as fs
from conformance.entries import METHODS
from fedsolve.core.types import module
from fedsolve.deploy.client.app import client_app
from fedsolve.deploy.method_spec import (
    _PARTS,
    _ROOTS,
    OPTIMISERS,
    classes,
    from_spec,
    method_from_spec,
    to_spec,
)
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
    local = fs.client.Optax(lambda learning_rate: optax.sgd(learning_rate), learning_rate=1.0)
    with pytest.raises(fs.InvalidInput, match="no importable name: clients cannot find it"):
        to_spec(fs.FedOpt(local, fs.server.ServerSGD()))


def test_names_of_the_packages_own_classes():
    """They say nothing about modules, so that a class may move, and no two are the same."""
    assert all(name == f"fedsolve:{cls.__qualname__}" for name, cls in classes().items())
    parts = {
        cls
        for root in (*_ROOTS, *_PARTS)
        for cls in (root, *subclasses(root))
        if cls.__module__.startswith(("fedsolve.core.", "fedsolve.geometry.", "fedsolve.methods."))
        and not inspect.isabstract(cls)
        and dataclasses.is_dataclass(cls)
    }
    assert parts <= set(classes().values())


def subclasses(cls):
    return {c for child in cls.__subclasses__() for c in (child, *subclasses(child))}


HOME = "fedsolve:FedOpt"


def nested(depth):
    spec = 1.0
    for _ in range(depth):
        spec = {"list": [spec]}
    return spec


def changed(method, **fields):
    """A method's description with other values in its outermost fields."""
    spec = json.loads(json.dumps(to_spec(method)))
    spec["fields"] |= fields
    return spec


def optimiser(**fields):
    return {"class": "fedsolve:Transformation", "fields": fields}


LOCAL = fs.privacy.LocalDifferentialPrivacy(fs.FedExP(0.3), 0.5, noise_multiplier=1.0, delta=1e-5)
INFINITE = base64.b64encode(np.array([-np.inf]).tobytes()).decode()
ATTACKS = {
    "a program": {"function": "os:system"},
    "a class elsewhere": {"class": "subprocess:Popen", "fields": {"args": "true"}},
    "a file is written": optimiser(
        factory={"function": "fedsolve.folders.files:write_atomically"},
        values={"dict": []},
        options={
            "tuple": [{"tuple": ["path", "{folder}/sitecustomize.py"]}, {"tuple": ["content", "import os"]}]
        },
    ),
    "a file as a schedule": changed(
        fs.FedAvg(0.1),
        local={
            "class": "fedsolve:SGD",
            "fields": {
                "lr": {
                    "class": "fedsolve:FromOptax",
                    "fields": {"function": {"function": "fedsolve.folders.files:slug"}},
                }
            },
        },
    ),
    "the command line": {"function": "fedsolve.cli.main:main"},
    "the command line as a factory": optimiser(factory={"optax": "cli.main"}, values={"dict": []}),
    "a private sender": {"function": "fedsolve.cli.federation.local:_send"},
    "a function as a field": changed(LOCAL, clip_norm={"function": "fedsolve.folders.files:slug"}),
    "an attribute of a class": {"class": HOME + ".__init__", "fields": {}},
    "a base class": {"class": HOME + ".__class__.__base__", "fields": {}},
    "another dataclass": {"class": "fedsolve:History", "fields": {"label": 1}},
    "an abstract class": {"class": "fedsolve:Algorithm", "fields": {}},
    "an optimiser that runs code": optimiser(factory={"optax": "inject_hyperparams"}, values={"dict": []}),
    "an optimiser by attribute": optimiser(factory={"optax": "__getattr__"}, values={"dict": []}),
    "an optimiser by path": optimiser(factory={"function": "optax._src.alias:adam"}, values={"dict": []}),
    "an optimiser in a list": optimiser(factory={"optax": ["adam"]}, values={"dict": []}),
    "an optimiser's strange argument": optimiser(factory={"optax": "adam"}, values={"dict": [["self", 1.0]]}),
    "an optimiser's callable": optimiser(
        factory={"optax": "adamw"}, values={"dict": []}, options={"tuple": [{"tuple": ["mask", nested(1)]}]}
    ),
    "an optimiser elsewhere": changed(fs.FedAvg(0.1), local={"optax": "adam"}),
    "dunder fields": changed(fs.FedAvg(0.1), __class__="x"),
    "a strange field": changed(fs.FedAvg(0.1), weights=1.0),
    "a missing field": {"class": HOME, "fields": {}},
    "no method inside": changed(LOCAL, inner=1.0),
    "too deep": nested(10_000),
    "a huge number": changed(LOCAL, delta=10**400),
    "a huge whole number": 2**64,
    "a number past its range": changed(LOCAL, share=2.0),
    "an array past its range": changed(LOCAL, share={"array": INFINITE, "dtype": "float64", "shape": [1]}),
    "a scalar array past its range": changed(
        LOCAL, share={"array": INFINITE, "dtype": "float64", "shape": []}
    ),
    "numbers in a list": changed(LOCAL, share={"list": [0.1]}),
    "an array of objects": {"array": "AAAAAAAAAAA=", "dtype": "object", "shape": [1]},
    "an array that lies": {"array": "AAAA", "dtype": "uint8", "shape": [2**30, 2**30]},
    "an array with a hole": {"array": "", "dtype": "uint8", "shape": [0, 10**18]},
    "an array of negative size": {"array": "AAAA", "dtype": "uint8", "shape": [-1]},
    "an array of no base": {"array": "?", "dtype": "uint8", "shape": [1]},
    "a type as a type": {"array": "AAAA", "dtype": ["uint8"], "shape": [3]},
    "two things at once": {"class": HOME, "fields": {}, "function": "os:system"},
    "an unhashable name": {"dict": [[["x"], 1]]},
    "nothing known": {"what": 1},
    "no data": b"bytes",
    "a part": to_spec(fs.server.ServerSGD()),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_what_an_order_cannot_do(name, tmp_path):
    """One line, and nothing else: no file, no import, no other error, whatever is asked for."""
    spec, before = ATTACKS[name], set(sys.modules)
    if name == "a file is written":
        spec = json.loads(json.dumps(spec).replace("{folder}", str(tmp_path)))
    with pytest.raises(fs.InvalidInput) as caught:
        method_from_spec(spec)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500
    assert not list(tmp_path.iterdir())
    assert not {
        m
        for m in set(sys.modules) - before
        if m.startswith(("fedsolve.cli", "fedsolve.cli.federation.local"))
    }


@module
class Mine(fs.client.LocalSolver):
    """A user's own solver."""

    lr: float

    def solve(self, params, oracle, round):
        raise NotImplementedError


def mine(learning_rate):
    return optax.sgd(learning_rate)


def test_ones_own_parts():
    """Built only where the client's owner has listed them, the class or function itself."""
    own = fs.FedOpt(Mine(0.1), fs.server.Optax(mine, learning_rate=0.5))
    spec = json.loads(json.dumps(to_spec(own)))
    for some in ((), (Mine,), (mine,)):
        with pytest.raises(fs.InvalidInput, match=r"which this client does not know: .*trusted=\(\.\.\.\)"):
            method_from_spec(spec, some)
    assert method_from_spec(spec, (Mine, mine)) == own
    for wrong in ("mylab", ("mylab",), (np,), (int,)):
        with pytest.raises(fs.InvalidInput, match="trusted"):
            client_app(lambda node: None, trusted=wrong)


def test_optimisers_are_those_of_optax():
    """Every name of the table is a function of optax or of its contributions, and comes back as itself."""
    for name in OPTIMISERS:
        factory = getattr(optax, name, None) or getattr(optax.contrib, name)
        needed = "learning_rate" in inspect.signature(factory).parameters
        solver = fs.client.Optax(factory, **({"learning_rate": 0.1} if needed else {}))
        assert from_spec(to_spec(solver)) == solver
        assert from_spec(to_spec(solver)).transformation.factory is factory


def test_every_optimiser_that_makes_itself_may_be_named():
    """What optax has of them: except one of examples' gradients, and one that wraps another."""
    apart = {"dpsgd", "schedule_free"}
    for package in (optax, optax.contrib):
        made = {
            name: inspect.signature(f).parameters
            for name, f in vars(package).items()
            if inspect.isfunction(f)
        }
        rated = {name for name, given in made.items() if {"learning_rate", "max_learning_rate"} & set(given)}
        assert {name for name in rated if not name.startswith(("_", "scale_by"))} <= {*OPTIMISERS, *apart}
