"""The tasks of networks through the engine, from end to end, on small files: bytes, keys, tokens, unseen clients."""

import numpy as np
import pytest

import fedsolve as fs
from fedsolve.tasks import Softmax, cifar100, femnist, femnist_autoencoder, next_word, shakespeare
from fedsolve.tasks.models.recurrent import LSTM, Autoencoder
from tasks.test_cifar import images
from tasks.test_femnist import characters
from tasks.test_text_tasks import SMALL, chats, roles

__all__ = ["characters", "chats", "images", "roles"]  # fixtures


def trained(task, **options):
    return fs.run(fs.FedAvg(0.05), task, rounds=4, clients_per_round=2, **options)


@pytest.mark.full
def test_cifar_draws_its_crops_again_for_the_same_seed(images):
    task = cifar100(images[0], num_clients=6, model="softmax")
    once, again, other = (trained(task, seed=s) for s in (0, 0, 1))
    assert once.metrics["train_loss"].tolist() == again.metrics["train_loss"].tolist()
    assert once.metrics["train_loss"][-1] != other.metrics["train_loss"][-1]
    assert {"test_top5_accuracy", "client_accuracy_p10"} <= set(once.metrics)


@pytest.mark.full
def test_femnist_is_judged_by_unseen_writers(characters):
    run = trained(femnist(characters, model=Softmax(784, 62)))
    for name in ("unseen_accuracy", "unseen_accuracy_p10", "unseen_loss_worst", "unseen_loss_averaged"):
        assert np.isfinite(run.metrics[name]).all()
    run = trained(femnist_autoencoder(characters, model=Autoencoder((784, 16, 4))))
    assert run.metrics["unseen_loss"][-1] < run.metrics["unseen_loss"][0]


@pytest.mark.full
def test_texts_are_learnt(roles, chats):
    run = trained(shakespeare(roles, SMALL, length=8, min_characters=20))
    assert run.metrics["train_bits_per_character"][-1] < run.metrics["train_bits_per_character"][0]
    bits = np.asarray(run.metrics["test_loss"]) / np.log(
        2
    )  # a mean over sequences, which are not all of one length
    np.testing.assert_allclose(run.metrics["test_bits_per_character"], bits, rtol=1e-3)
    run = trained(next_word(LSTM(7, 4, 8, 1), vocabulary=3, length=4, min_words=3))
    assert run.metrics["train_loss"][-1] < run.metrics["train_loss"][0]
