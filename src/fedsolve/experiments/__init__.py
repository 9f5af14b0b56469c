"""The papers' tables and figures as programs: `fedsolve reproduce NAME`."""

from fedsolve.experiments.catalogue import reproduce
from fedsolve.experiments.entries import EXPERIMENTS

__all__ = ["EXPERIMENTS", "reproduce"]
