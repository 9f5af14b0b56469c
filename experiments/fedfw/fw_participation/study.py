"""Clients that take part: Figures 2 and 3 of the paper."""

from experiments.fedfw.ablations import STUDIES

STUDY = STUDIES["fw-participation"]
