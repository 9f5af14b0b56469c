"""The autoencoder of handwritten characters of Reddi et al. 2021, on the images of `femnist`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsolve.core.building.build_record import by_name
from fedsolve.data.federated import FederatedData
from fedsolve.tasks.choices import pick
from fedsolve.tasks.images.femnist import pictures
from fedsolve.tasks.losses.reconstruction import ReconstructionError
from fedsolve.tasks.models.models import check_model
from fedsolve.tasks.networks.autoencoder import Autoencoder
from fedsolve.tasks.task import Examples, Task

MODELS = {"autoencoder": Autoencoder(), "small": Autoencoder((784, 128, 30))}
"""Models of the task by name."""


@by_name("femnist-autoencoder")
def femnist_autoencoder(
    data_dir: str | Path | None = None,
    model: Any = "autoencoder",
    num_clients: int | None = None,
    seed: int = 0,
    flip: bool = True,
    dataset: str = "sample",
) -> Task:
    """FEMNIST sample, 300 + 240 writers: images to compress and give back (Reddi et al. 2021).

    The loss is the mean square of the reconstruction's error in a pixel, the paper's measure, of training, test
    and unseen writers. Writers and images are those of `femnist`, a sample: Reddi et al. have 3,400 writers with
    671,585 images. x and y are both the image, uint8 of shape (n, 28, 28, 1), of which the model and the loss
    take x / 255. Batches of 20 and 1 epoch are theirs; they draw 10 clients a round, for 3,000 rounds.

    Args:
        data_dir: the data folder; default the environment variable FEDSOLVE_DATA.
        model: "autoencoder" (the paper's, 784-1000-500-250-30 and back), "small" (784-128-30 and back), or any model
            whose outputs have the shape of its inputs.
        num_clients: that many writers, drawn at random; default all; at least 1.
        seed: of the drawn writers, at least 0.
        flip: paper is 1 and ink 0, as in TensorFlow's federated EMNIST and in LEAF; without, ink is 1.
        dataset: "sample", or "leaf" for the writers of the folder that `fedsolve data femnist` converted.

    Returns:
        The task `femnist-sample-autoencoder` or `femnist-leaf-autoencoder`, whose loss is its measure; it has no
        other metric.

    Raises:
        InvalidInput: the file is missing, damaged or another version, or an argument that cannot be used.
    """
    chosen = pick("model", model, MODELS)
    data, test, unseen = pictures(data_dir, num_clients, seed, dataset, flip)
    check_model(chosen, (28, 28, 1), (28, 28, 1))
    return Task(
        name=f"femnist-{dataset}-autoencoder",
        init=chosen.init,
        loss=ReconstructionError(chosen),
        data=_themselves(data),
        test=Examples(test.x, test.x),
        unseen=None if unseen is None else _themselves(unseen),
        batch_size=20,
        eval_examples=2_000,
        citation="reddi2021fedopt",
    )


def _themselves(data: FederatedData) -> FederatedData:
    """The same clients with the images as targets."""
    x = data.examples.x
    return FederatedData(Examples(x, x), data.counts, data.names)
