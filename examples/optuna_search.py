"""Bayesian search: Optuna asks for eight settings at a time, which one compiled program trains side by side.

Run it: python examples/optuna_search.py (after pip install optuna)
"""

import optuna

import fedsolve as fs

task = fs.tasks.digits(num_clients=20, model="softmax")
optuna.logging.set_verbosity(optuna.logging.WARNING)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(n_startup_trials=8, seed=0))
for _ in range(4):
    trials = [study.ask() for _ in range(8)]
    asked = [
        {name: t.suggest_float(name, 1e-3, 10, log=True) for name in ("client_lr", "server_lr")}
        for t in trials
    ]
    found = fs.sweep(
        lambda trial, asked=asked: fs.FedAdam(**asked[trial]), task, {"trial": range(8)}, seeds=2, rounds=30
    )
    for trial, score in zip(trials, found.score.tolist(), strict=True):
        study.tell(trial, score)  # infinite where a seed diverged
    print(f"{len(study.trials)} settings: best training loss {study.best_value:.4f} at {study.best_params}")

# the least of many losses is too low an estimate: other seeds tell what the setting is worth
again = fs.run(fs.FedAdam(**study.best_params), task, seeds=[10, 11, 12], rounds=30)
print(f"with other seeds: training loss {again.final('train_loss').mean():.4f}")
