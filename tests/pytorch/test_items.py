"""Data sets whose items cannot be put together: one line names the item and what to do."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

import fedsolve as fs  # noqa: E402


class Items(Dataset):
    def __init__(self, item):
        self.item = item

    def __len__(self):
        return 4

    def __getitem__(self, i):
        return self.item(i)


class Image:
    """As PIL's, which PyTorch does not put together."""


@pytest.mark.parametrize(
    ("item", "words", "loaded"),
    [
        (
            lambda i: (torch.zeros(3 + (i == 2)), 0),
            r"client 0: item 2 has a part of shape \(4,\), item 0 \(3,\): pad or crop",
            "equal size",
        ),
        (
            lambda i: (Image(), 0),
            r"client 0: item 0 holds .*Image.*make tensors in the dataset's transform",
            "Image",
        ),
    ],
)
def test_items_that_make_no_batch(item, words, loaded):
    with pytest.raises(fs.InvalidInput, match=words):
        fs.tasks.from_torch(nn.Linear(3, 2), nn.CrossEntropyLoss(), [Items(item)])
    with pytest.raises(fs.InvalidInput, match=rf"{loaded}.*a collate_fn that pads") as caught:
        fs.flower.TorchOracle(nn.Linear(3, 2), nn.CrossEntropyLoss(), DataLoader(Items(item), batch_size=4))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("translate", [None, False])
@pytest.mark.parametrize(("sizes", "batch_size"), [((4, 9), 4), ((3, 1), None)])
def test_a_batch_of_one_example_that_no_batch_normalisation_takes(sizes, batch_size, translate):
    module = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    clients = [(torch.zeros(n, 3), torch.zeros(n, dtype=torch.long)) for n in sizes]
    words = "a batch of client 1 has one example: Sequential fails .*more than 1 value per channel.*: take another"
    with pytest.raises(fs.InvalidInput, match=words):
        fs.tasks.from_torch(
            module, nn.CrossEntropyLoss(), clients, batch_size=batch_size, translate=translate
        )


def test_missing_values_go_with_a_mask():
    x = torch.zeros(4, 3)
    x[1, 2] = torch.nan
    with pytest.raises(
        fs.InvalidInput, match=r"in row 1: .*a number in its place and a mask as a further field"
    ):
        fs.tasks.from_torch(nn.Linear(3, 2), nn.CrossEntropyLoss(), [(x, torch.zeros(4))])


def test_reading_items_draws_nothing_for_good():
    module, items = nn.Linear(3, 2), Items(lambda i: (torch.rand(3), i % 2))
    state = torch.get_rng_state()
    with pytest.raises(fs.InvalidInput, match="must be a function"):
        fs.tasks.from_torch(module, None, [items])
    assert torch.equal(torch.get_rng_state(), state)
