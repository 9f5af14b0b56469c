"""The app that the tests of real federations run: digits with JAX clients, some of which can be told to misbehave."""

from __future__ import annotations

from pathlib import Path

from fedsolve.cli.federation.new import write_app

SETTINGS = {
    "SCAFFOLD+FedDuAdam": {"equal_steps": 15},
    "Personal+SCAFFOLD+FedAdam": {"leaves": "1.*", "equal_steps": 15},
    "FedBuff": {"buffer": 2},
    "Secure+FedAvg": {"bound": 4.0, "max_clients": 10, "max_examples": 1000},
}
"""What methods are given beside their clients' rate; 479 and 480 examples are 15 batches."""

PROBLEM = '''
import os
import signal

import jax
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

import fedsolve as fs
from fedsolve.engine.compute.casting import start_params

CLIENTS = __CLIENTS__
SETTINGS = __SETTINGS__
TASK = fs.tasks.digits(num_clients=CLIENTS, partition="iid")


def oracle(node):
    if os.path.exists(node.run_config["out"] + f"/away-{node.client}"):
        raise fs.InvalidInput("the data are away")
    return fs.flower.JaxOracle.of_task(TASK, node.client, params=initial()[0])


def initial():
    return jax.tree.map(np.asarray, start_params(TASK, 0, "float32")), {}


def evaluate(params, buffers):
    return {"test_accuracy": float(TASK.metrics["accuracy"](params, TASK.test))}


def after_steps(at):
    """Where clients measure: what they find after two local steps, which the run's folder keeps."""
    if "clients_measured" in at.metrics:
        at.clients(steps=2, solver=fs.client.SGD(0.1))


def misbehave(message, context, call_next):
    """`fault` of the run's configuration: "round:client:what", several with commas; rounds from 1."""
    opening = context.run_config["out"] + f"/die-{context.node_config['client-id']}"
    if message.metadata.message_type == "query.secure" and message.content["sums"]["step"] == "unmask":
        if os.path.exists(opening):
            os.remove(opening)
            os._exit(9)
    if message.metadata.message_type != "train":
        return call_next(message, context)
    now, client = message.content["order"]["round"] + 1, context.node_config["client-id"]
    what = ""
    for fault in filter(None, str(context.run_config["fault"]).split(",")):
        at, who, kind = fault.split(":")
        what = kind if (int(at), int(who)) == (now, client) else what
    if what == "die":
        os._exit(9)
    if what == "raise":
        raise RuntimeError("the disk is gone")
    if what == "die-opening":  # when it is asked for its shares
        open(opening, "w").close()
    if what == "wait":  # until the file appears
        import time
        open(context.run_config["out"] + "/waiting", "w").close()
        while not os.path.exists(context.run_config["out"] + "/go"):
            time.sleep(0.2)
    reply = call_next(message, context)
    content = reply.content
    if what == "nan":
        data = bytearray(content["message"]["bytes"].data)
        data[0:4] = np.float32(np.nan).tobytes()
        content["message"] = ArrayRecord({"bytes": Array("uint8", (len(data),), "bytes", bytes(data))})
    if what == "short":
        data = content["message"]["bytes"].data[:-4]
        content["message"] = ArrayRecord({"bytes": Array("uint8", (len(data),), "bytes", data)})
    if what in ("stale", "foreign"):
        facts = dict(content["reply"])
        facts.update({"round": facts["round"] - 1} if what == "stale" else {"experiment": "another-1"})
        content["reply"] = ConfigRecord(facts)
    return reply
'''

CLIENT = """
from flwr.clientapp import ClientApp

import fedsolve as fs
from realapp import problem

_inner = fs.flower.client_app(problem.oracle)
app = ClientApp(mods=[problem.misbehave])
app.train()(lambda message, context: _inner(message, context))
app.evaluate()(lambda message, context: _inner(message, context))
app.query()(lambda message, context: _inner(message, context))
app.query("secure")(lambda message, context: _inner(message, context))
"""


def write(folder: Path, clients: int = 3) -> Path:
    """The app's folder."""
    app = folder / "realapp"
    write_app(app, "digits", "jax", clients)
    problem = PROBLEM.lstrip().replace("__SETTINGS__", repr(SETTINGS)).replace("__CLIENTS__", str(clients))
    (app / "realapp" / "problem.py").write_text(problem)
    (app / "realapp" / "client_app.py").write_text(CLIENT.lstrip())
    server = (app / "realapp" / "server_app.py").read_text()
    given = '{"client_lr": config["client-lr"]}'
    assert given in server
    more = f'{given} | problem.SETTINGS.get(config["method"], {{}})'
    evaluated = "    evaluate=problem.evaluate,\n"
    assert evaluated in server
    server = server.replace(evaluated, f"{evaluated}    callbacks=[problem.after_steps],\n")
    (app / "realapp" / "server_app.py").write_text(server.replace(given, more))
    toml = (app / "pyproject.toml").read_text()
    toml = toml.replace("min-replies = 2 ", "min-replies = 3 ")
    (app / "pyproject.toml").write_text(toml.rstrip() + '\nfault = ""\n')
    return app
