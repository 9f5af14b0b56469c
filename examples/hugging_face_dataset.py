"""A Hugging Face dataset with a column that says whose each row is, saved to disk and read without copies in Python.

Run it: python examples/hugging_face_dataset.py
"""

import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import fedsolve as fs
from datasets import Dataset


def digits(seed: int = 0) -> Dataset:
    """In place of datasets.load_dataset("..."): images of 60 phones, some of which see more ink than others."""
    draw = np.random.default_rng(seed)
    images, labels = load_digits(return_X_y=True)
    phone = draw.integers(0, 60, len(labels))
    ink = draw.uniform(0.5, 1.0, 60)[phone, None]
    return Dataset.from_dict({"image": (images / 16 * ink).tolist(), "label": labels, "phone": phone})


parts = digits().train_test_split(test_size=0.2, seed=0)
parts["train"].save_to_disk(
    "runs/phones"
)  # Arrow files, of any size: only fedsolve[arrow] is needed to read them
data = fs.data.from_table("runs/phones", client="phone", x="image", y="label")
held_out = parts["test"].with_format("numpy")
test = fs.Examples(np.asarray(held_out["image"], np.float32), np.asarray(held_out["label"], np.int32))

start = {"weight": jnp.zeros((64, 10)), "bias": jnp.zeros(10)}


def logits(params, x):
    """Softmax regression's scores, (n, 10)."""
    return x @ params["weight"] + params["bias"]


def loss(params, batch):
    """Mean cross-entropy."""
    scores = logits(params, batch.x)
    chosen = jnp.take_along_axis(scores, batch.y[:, None].astype(int), axis=1)[:, 0]
    return jnp.mean(jnp.log(jnp.sum(jnp.exp(scores), axis=1)) - chosen)


def accuracy(params, batch):
    """The share that is right."""
    return jnp.mean(logits(params, batch.x).argmax(1) == batch.y)


task = fs.Task.from_arrays(loss, start, data, test=test, metrics={"accuracy": accuracy}, batch_size=10)
result = fs.run(fs.FedAdam(0.1), task, rounds=60, clients_per_round=10, out="runs/phones-run")
print(f"{data.num_clients} phones, accuracy {100 * result.metrics['test_accuracy'][-1]:.1f} %")
print("page: runs/phones-run/page.html")
