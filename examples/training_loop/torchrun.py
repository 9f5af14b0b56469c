"""A loop that `torchrun` starts on several devices: this file is the app of a node, and the program that it starts.

Run it: python examples/training_loop/torchrun.py
"""

import json
import os
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

SITES = 2


def network():
    """The model, the same everywhere."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def examples(site):
    """The examples of a site; of number SITES the server's, which no site has."""
    x, y = load_digits(return_X_y=True)
    chosen = slice(site, 1500, SITES) if site < SITES else slice(1500, None)
    return torch.tensor(x[chosen] / 16, dtype=torch.float32), torch.tensor(y[chosen])


def train(folder, site):
    """What each of torchrun's processes does: read the model, train it on a part of the examples, write it."""
    torch.distributed.init_process_group("gloo")  # "nccl" on GPUs
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model, (x, y) = network(), examples(site)
    received = load_file(folder / "model.safetensors")
    model.load_state_dict(received, strict=False)  # frozen parameters are not in it
    parallel, steps = nn.parallel.DistributedDataParallel(model), 0
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(5):
        for rows in torch.randperm(len(x)).split(64):  # the same order in each process
            mine = rows[rank::size]
            F.cross_entropy(parallel(x[mine]), y[mine]).backward()
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    if rank == 0:
        trained = model.state_dict()
        save_file({name: trained[name] for name in received}, folder / "trained.safetensors")
        (folder / "results.json").write_text(json.dumps({"examples": len(x), "steps": steps}))
    torch.distributed.destroy_process_group()


if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun has started this
    train(Path(sys.argv[1]), int(sys.argv[2]))
    sys.exit()

import fedsolve as fs  # noqa: E402 (its processes need none of it)

launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__]


def client_for(node):
    """What a node does: `client-id` in its configuration says which site it is."""
    loop = fs.flower.CommandLoop([*launch, "{folder}", str(node.client)], timeout=600)
    return fs.flower.TrainedClient(network(), loop)


client = fs.flower.client_app(client_for)
server = fs.flower.server_app(
    fs.FedAvg(), fs.flower.trained_parameters(network()), rounds=2, population=SITES
)

if __name__ == "__main__":  # the same on one machine
    loop = fs.flower.CommandLoop([*launch, "{folder}", "{data}"], timeout=600)
    task = fs.tasks.from_training(network(), loop, range(SITES))
    trained = fs.run(fs.FedAvg(), task, rounds=2).module()
    x, y = examples(SITES)
    print(f"accuracy on unseen digits: {100 * (trained(x).argmax(1) == y).float().mean():.1f} %")
