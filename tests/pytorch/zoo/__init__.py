"""Modules and losses that people write, each with what must become of it."""

from zoo import (
    architectures,
    attention,
    batches,
    convolutional,
    layers,
    losses,
    numbers,
    recurrent,
    torchvision_families,
    transformers_families,
    tricks,
)
from zoo.entry import Entry

_TOPICS = (layers, convolutional, recurrent, attention, losses, tricks, architectures, numbers, batches)
_FAMILIES = (torchvision_families, transformers_families)
ENTRIES: list[Entry] = [entry for topic in (*_TOPICS, *_FAMILIES) for entry in topic.ENTRIES]
