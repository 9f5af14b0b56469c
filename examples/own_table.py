"""A table with a column that says whose each row is: clients of any size, three methods, five seeds, a page.

Run it: python examples/own_table.py
"""

import jax.numpy as jnp
import numpy as np
import pandas as pd

import fedsolve as fs


def readings(seed: int = 0) -> pd.DataFrame:
    """In place of pd.read_csv("readings.csv"): power of 40 heat pumps by outside and set temperature."""
    draw = np.random.default_rng(seed)
    pump = draw.integers(0, 40, 4000)
    outside, wanted = draw.normal(5, 8, len(pump)), draw.normal(21, 1, len(pump))
    loss = 0.08 + 0.02 * draw.normal(size=40)[pump]  # each house leaks heat in its own way
    power = loss * (wanted - outside) + 0.1 * draw.normal(size=len(pump))
    return pd.DataFrame({"pump": pump, "outside": outside, "wanted": wanted, "power": power})


table = readings()
features = ["outside", "wanted"]
table[features] = (table[features] - table[features].mean()) / table[features].std()
train, test = table[table.index % 5 > 0], table[table.index % 5 == 0]


def arrays(rows: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and targets."""
    return rows[features].to_numpy(np.float32), rows["power"].to_numpy(np.float32)


def loss(params, batch):
    """Mean squared error of a linear model."""
    x, y = batch
    return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)


clients = [arrays(rows) for _, rows in train.groupby("pump")]
start = {"w": jnp.zeros(2), "b": jnp.zeros(())}
task = fs.Task.from_arrays(loss, start, clients, test=arrays(test), batch_size=20)

methods = {"FedAvg": fs.FedAvg(0.03), "FedDuAdam": fs.FedDuAdam(0.03), "SCAFFOLD": fs.SCAFFOLD(0.03)}
found = fs.compare(methods, task, seeds=5, rounds=60, clients_per_round=10, out="runs/heat-pumps")
print(found.to_latex(metrics=["test_loss"]))  # the mean ± the sample standard deviation over the five seeds
print("page: runs/heat-pumps/page.html")
