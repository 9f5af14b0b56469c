"""The papers' tables and figures as programs: `fedsolve reproduce NAME`."""

from fedsolve.experiments.catalogue import EXPERIMENTS, reproduce

__all__ = ["EXPERIMENTS", "reproduce"]
