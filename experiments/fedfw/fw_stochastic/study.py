"""Stochastic variants of Frank-Wolfe: Table 3 of the paper."""

from experiments.fedfw.linear import STUDIES

STUDY = STUDIES["fw-stochastic"]
