"""A `transformers.Trainer` as a training loop: rounds are the parts of one training."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.deploy.oracles.trainers import HuggingFaceLoop

EXAMPLES, BATCH = 22, 4  # six batches, the last of two examples


@pytest.fixture(scope="module")
def library():
    for package in ("torch", "transformers", "accelerate"):
        pytest.importorskip(package, reason=f"{package} is not installed (make test-all installs it)")
    import torch
    import transformers.trainer

    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        # tests/datasets is no package that the Trainer could use
        patch.setattr(transformers.trainer, "is_datasets_available", lambda: False)
        yield SimpleNamespace(torch=torch, transformers=transformers)


def texts():
    rng = np.random.default_rng(0)
    return [{"input_ids": rng.integers(0, 50, 7), "labels": int(rng.integers(0, 2))} for _ in range(EXAMPLES)]


def bert(library, dropout=0.0):
    library.torch.manual_seed(0)
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = library.transformers.BertConfig(
        vocab_size=50,
        num_labels=2,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **sizes,
    )
    return library.transformers.BertForSequenceClassification(config)


def trainer_of(library, folder, model=None, optimizers=(None, None), **options):
    given = {"optim": "sgd", "learning_rate": 0.3, "warmup_steps": 3, "num_train_epochs": 4} | options
    arguments = library.transformers.TrainingArguments(
        str(folder), per_device_train_batch_size=BATCH, report_to="none", save_strategy="no", use_cpu=True,
        disable_tqdm=True, logging_strategy="no", **given,
    )  # fmt: skip
    data = texts()
    return library.transformers.Trainer(
        bert(library) if model is None else model, arguments, train_dataset=data, eval_dataset=data[:9],
        optimizers=optimizers, compute_metrics=lambda p: {"share": float(np.mean(p.label_ids))},
    )  # fmt: skip


def weights(model):
    return {name: p.detach().numpy().copy() for name, p in model.named_parameters()}


def difference(one, other):
    assert one.keys() == other.keys()
    return max(float(np.abs(one[name] - other[name]).max()) for name in one)


@pytest.mark.full
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_rounds_are_the_parts_of_one_training(library, tmp_path, dropout):
    """Plain SGD of four epochs with warm-up and a linear schedule, at once and by rounds of an epoch each.

    With dropout the first round alone has the same draws: later ones begin with seeds of their own.
    """
    whole = trainer_of(library, tmp_path, bert(library, dropout), num_train_epochs=4)
    ends = []

    class Ends(library.transformers.TrainerCallback):
        def on_epoch_end(self, args, state, control, model=None, **kwargs):
            ends.append(weights(model))

    whole.add_callback(Ends())
    whole.train()
    parts = trainer_of(library, tmp_path, bert(library, dropout), num_train_epochs=4)
    loop = HuggingFaceLoop(parts, epochs=1)
    for number in range(1, 5 if dropout == 0 else 2):
        before = weights(parts.model)
        told = loop(parts.model, number)
        assert (told["examples"], told["steps"]) == (EXAMPLES, 6)
        assert difference(before, weights(parts.model)) > 1e-3
        assert difference(weights(parts.model), ends[number - 1]) < 1e-6


@pytest.mark.full
def test_rates_and_orders_by_rounds_of_steps(library, tmp_path):
    """The rates of a round are those of the whole schedule there; each round sees its examples in another order."""
    seen, rates = [], []

    class Watched(library.transformers.Trainer):
        def training_step(self, model, inputs, *args):
            seen.append(inputs["labels"].tolist())
            rates.append(self.lr_scheduler.get_last_lr()[0])
            return super().training_step(model, inputs, *args)

    trainer = trainer_of(library, tmp_path, gradient_accumulation_steps=2, max_steps=8)
    trainer.__class__ = Watched
    loop = HuggingFaceLoop(trainer, steps=2, loss=False)
    told = loop(trainer.model, 3)
    assert told.keys() == {"examples", "steps", "training_loss"}
    assert told["steps"] == 2
    # after 3 steps of warm-up the rate falls to 0 at step 8
    np.testing.assert_allclose(rates, [0.3 * 4 / 5] * 2 + [0.3 * 3 / 5] * 2)
    loop(trainer.model, 3)
    assert seen[:4] == seen[4:]
    loop(trainer.model, 2)
    assert seen[:4] != seen[8:]
    np.testing.assert_allclose(rates[8:], [0.3 * 2 / 3] * 2 + [0.3] * 2)
    rates.clear()
    HuggingFaceLoop(trainer, epochs=1, loss=False)(trainer.model, 2)  # three steps, after three
    np.testing.assert_allclose(rates, [0.3] * 2 + [0.3 * 4 / 5] * 2 + [0.3 * 3 / 5] * 2)
    rates.clear()
    HuggingFaceLoop(trainer, steps=2, restart_schedule=True)(trainer.model, 4)
    np.testing.assert_allclose(rates, [0, 0, 0.1, 0.1])


@pytest.mark.full
def test_the_loss_is_of_the_model_as_received(library, tmp_path):
    """The mean cross-entropy without dropout; evaluation has its names without the Trainer's prefix and clock."""
    torch = library.torch
    trainer = trainer_of(library, tmp_path, bert(library, dropout=0.5))
    loop, model = HuggingFaceLoop(trainer, steps=1), trainer.model
    tokens = torch.tensor(np.stack([text["input_ids"] for text in texts()]))
    labels = torch.tensor([text["labels"] for text in texts()])

    def loss(rows):
        with torch.no_grad():
            return float(torch.nn.functional.cross_entropy(model.eval()(tokens[rows]).logits, labels[rows]))

    for number in (1, 2):
        wanted = loss(slice(None))
        assert loop(model, number)["loss"] == pytest.approx(wanted, rel=1e-5)
    found = loop.evaluate(model)
    assert found.keys() == {"loss", "share"}
    assert found["loss"] == pytest.approx(loss(slice(9)), rel=1e-5)
    assert found["share"] == pytest.approx(float(labels[:9].float().mean()))


@pytest.mark.full
def test_state_of_the_optimiser(library, tmp_path):
    """It begins anew in each round; one of the user's own goes on."""
    steps = []

    class Ends(library.transformers.TrainerCallback):
        def on_train_end(self, args, state, control, optimizer=None, **kwargs):
            steps.append({int(state["step"]) for state in optimizer.optimizer.state.values()})

    fresh = trainer_of(library, tmp_path, optim="adamw_torch")
    fresh.add_callback(Ends())
    for number in (1, 2):  # by another loop, too: a node makes a new one after an exception
        HuggingFaceLoop(fresh, steps=2, loss=False)(fresh.model, number)
        assert fresh.optimizer is None
    assert steps == [{2}, {2}]
    model = bert(library)
    own = library.torch.optim.Adam(model.parameters(), 0.01)
    kept = trainer_of(library, tmp_path, model, (own, None))
    loop = HuggingFaceLoop(kept, steps=2, loss=False)
    for number in (1, 2):
        loop(model, number)
        (steps,) = {int(state["step"]) for state in own.state.values()}
        assert steps == 2 * number


@pytest.mark.full
def test_an_adapter_alone_is_trained(library, tmp_path):
    peft = pytest.importorskip("peft", reason="peft is not installed (make test-all installs it)")
    model = peft.get_peft_model(
        bert(library),
        peft.LoraConfig(r=2, target_modules=["query"], task_type="SEQ_CLS", init_lora_weights=False),
    )
    trainer = trainer_of(library, tmp_path, model, warmup_steps=0)
    before = weights(model)
    HuggingFaceLoop(trainer, epochs=1)(model, 1)
    moved = {name for name, array in weights(model).items() if (array != before[name]).any()}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert moved == trained
    assert all("lora_" in name or "classifier" in name for name in moved)


@pytest.mark.full
def test_refusals_of_real_trainers(library, tmp_path):
    trainer = trainer_of(library, tmp_path, num_train_epochs=2)
    loop = HuggingFaceLoop(trainer, epochs=1, loss=False)
    with pytest.raises(
        fs.InvalidInput, match=r"Trainer's 12 steps end in this round, which has 6 after 12: set num"
    ):
        loop(trainer.model, 3)
    with pytest.raises(fs.InvalidInput, match=r"Trainer's 12 steps end in this round, which has 18 after 0"):
        HuggingFaceLoop(trainer, epochs=3, loss=False)(trainer.model, 1)
    with pytest.raises(fs.InvalidInput, match=r"not the Trainer's: give trainer.model"):
        loop(copy.deepcopy(trainer.model), 1)
    assert loop(trainer.model, 2)["steps"] == 6  # it goes on after a refusal
    endless = trainer_of(library, tmp_path, num_train_epochs=2, lr_scheduler_type="constant")
    assert HuggingFaceLoop(endless, epochs=1, loss=False)(endless.model, 9)["steps"] == 6


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ({}, {}, r"steps = None, epochs = None: give exactly one"),
        ({}, {"steps": 1, "epochs": 1}, r"steps = 1, epochs = 1: give exactly one"),
        ({}, {"steps": 0}, r"steps = 0 must be an integer of at least 1"),
        ({}, {"epochs": 0.5}, r"epochs = 0.5 must be an integer of at least 1"),
        ({"model_init": print}, {"epochs": 1}, r"model_init or data_seed, by which all rounds begin alike"),
        ({"args": SimpleNamespace(data_seed=0)}, {"epochs": 1}, r"model_init or data_seed"),
        ({"is_deepspeed_enabled": True}, {"epochs": 1}, r"by DeepSpeed or FSDP: run it by CommandLoop"),
        ({"is_fsdp_enabled": True}, {"epochs": 1}, r"run it by CommandLoop"),
    ],
)
def test_refusals(given, options, reason):
    """Before the library is needed."""
    plain = {"is_deepspeed_enabled": False, "is_fsdp_enabled": False, "model_init": None}
    plain |= {"args": SimpleNamespace(data_seed=None)}
    with pytest.raises(fs.InvalidInput, match=reason):
        HuggingFaceLoop(SimpleNamespace(**(plain | given)), **options)
