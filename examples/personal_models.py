"""Who gets a model of their own: FedAvg, FedPer, FedRep and Ditto, each as it is and fine-tuned, on two problems.

Run it: python examples/personal_models.py
On the digits, clients have few classes each but mean the same by them. On the linear problem of Collins et al. 2021 all
share two directions of 20, and each weighs them in its own way. Clients are evaluated on examples that they held out.
"""

import jax.numpy as jnp
import numpy as np

import fedsolve as fs

SEEDS, ROUNDS = 3, 100


def digits() -> fs.Task:
    """40 clients of few classes."""
    return fs.tasks.digits(num_clients=40, partition=fs.data.Dirichlet(0.1)).hold_out(0.3)


def linear() -> fs.Task:
    """50 clients of 20 examples: y = <head_i, body^T x> and a little noise, body (20, 2)."""
    draw = np.random.default_rng(0)
    body, clients = np.linalg.qr(draw.normal(size=(20, 2)))[0], []
    for _ in range(50):
        x = draw.normal(size=(20, 20))
        clients.append((x, x @ body @ draw.normal(size=2) + 0.1 * draw.normal(size=20)))
    start = {"body": 0.3 * draw.normal(size=(20, 2)), "head": 0.3 * draw.normal(size=2)}

    def squared(params, batch):
        return jnp.mean((batch[0] @ params["body"] @ params["head"] - batch[1]) ** 2)

    task = fs.Task.from_arrays(squared, start, clients, batch_size=10, epochs=2, name="linear")
    return task.hold_out(0.3)


def methods(rate: float, head: str) -> dict[str, fs.Algorithm]:
    """All at one rate; the head is what stays with each client."""
    return {
        "FedAvg": fs.FedAvg(rate),
        "FedPer": fs.FedPer(head, rate),
        "FedRep": fs.FedRep(head, rate, personal_lr=rate, passes=5),
        "Ditto": fs.Ditto(fs.FedAvg(rate), lam=0.1, personal_lr=rate),
    }


if __name__ == "__main__":
    for make, metric, rate, head in ((digits, "accuracy", 0.3, "1.*"), (linear, "loss", 0.05, "head")):
        print(f"{make.__name__}: {metric} of clients on what they held out, each by its own model")
        task = make()
        for name, method in methods(rate, head).items():
            found, up = {"": [], "fine-tuned": []}, 0.0
            for seed in range(SEEDS):
                look = fs.callbacks.FineTuning(10, rate, rounds=[ROUNDS])
                result = fs.run(
                    method,
                    task,
                    rounds=ROUNDS,
                    eval_every=ROUNDS,
                    clients_per_round=10,
                    seed=seed,
                    callbacks=[look],
                )
                up = result.history.total("bytes_up") / 1e6
                found[""].append(np.nanmean(look.before[ROUNDS].column(metric)))
                found["fine-tuned"].append(np.nanmean(look.after[ROUNDS].column(metric)))
            words = [f"{how} {np.mean(x):.3f} ± {np.std(x):.3f}".strip() for how, x in found.items()]
            print(f"  {name:8} {', '.join(words)}, {up:.2f} MB up")
