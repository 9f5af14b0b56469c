"""Training loops of one's own on a real SuperLink with TLS and three SuperNodes, one of which is killed in a round."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_federation import finished, rows, wait
from test_federation_secure import files  # noqa: F401 (a fixture)

from fedsolve.cli.federation.local import LocalFederation
from fedsolve.cli.federation.new import write_app

torch = pytest.importorskip("torch")

ORACLE = '''
def train(model, round, node):
    """Adam whose moments stay on the node; client 2 waits in the round that the test names."""
    import time

    out = Path(node.run_config["out"])
    if node.client == 2 and (out / f"hold-{round}").exists():
        (out / "waiting").touch()
        while (out / f"hold-{round}").exists():
            time.sleep(0.1)
    x, y = map(torch.tensor, examples(node)[0])
    optimiser, kept = torch.optim.Adam(model.parameters(), 1e-3), round.folder / "adam.pt"
    if kept.exists():
        optimiser.load_state_dict(torch.load(kept))
    model.train()
    for batch in torch.randperm(len(x)).split(BATCH_SIZE):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch].long()).backward()
        optimiser.step()
    torch.save(optimiser.state_dict(), kept)
    steps = int(next(iter(optimiser.state.values()))["step"])
    (round.folder / f"steps-{round}").write_text(str(steps))
    return {"examples": len(x), "steps": steps}


def oracle(node):
    return fs.flower.TrainedClient(module(), lambda model, round: train(model, round, node))
'''


def write(folder):
    app = folder / "loops"
    write_app(app, "digits", "torch", 3)
    problem = app / "loops" / "problem.py"
    text = problem.read_text()
    before, rest = text.split("def oracle(node):")
    problem.write_text(before + ORACLE.lstrip() + "\n\ndef initial():" + rest.split("def initial():")[1])
    return app


@pytest.mark.alone
@pytest.mark.full
def test_a_node_is_killed_in_its_loop(files, tmp_path):  # noqa: F811
    """Round 2 ends without it at its deadline; started again it takes part, and its optimiser goes on where it was."""
    out = tmp_path / "run"
    out.mkdir()
    tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
    options = [word if word.startswith("--") else str(files / word) for word in tls]
    environment = {"JAX_PLATFORMS": "cpu"}
    federation = LocalFederation(
        tmp_path / "flower", 3, insecure=False, link_options=options, certificate=files / "ca.crt",
        environment=environment,
    )  # fmt: skip
    (out / "hold-2").touch()
    with federation:
        given = {"method": "FedAdam", "client-lr": 0.1, "rounds": 4, "out": str(out), "quorum": 3}
        federation.submit(write(tmp_path), given | {"round-seconds": 60.0, "connect-seconds": 200.0})
        wait(federation, out, (out / "waiting").exists)
        federation.kill(federation.nodes[2])
        (out / "hold-2").unlink()
        wait(federation, out, lambda: len(rows(out)) > 1)
        federation.start_node(2)
        history = wait(federation, out, lambda: finished(out), 300)
    assert history.rounds["dropped"][:2].tolist() == [0, 1]
    assert history.rounds["dropped"][-1] == 0
    assert history.final("test_accuracy") > history.evaluations["test_accuracy"][0] + 0.3
    loops = sorted((tmp_path / "flower" / "states").glob("*/client-*-loop"))
    assert len(loops) == 3
    steps = {int(f.name[6:]): int(f.read_text()) for f in loops[2].glob("steps-*")}
    assert 2 not in steps
    assert steps[4] > steps[1]
    model = load_file(out / "model.safetensors")
    assert all(np.isfinite(x).all() for x in model.values())
