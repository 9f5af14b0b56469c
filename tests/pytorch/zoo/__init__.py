"""Modules and losses that people write, each with what must become of it."""

from zoo import layers
from zoo.entry import Entry

ENTRIES: list[Entry] = [*layers.ENTRIES]
