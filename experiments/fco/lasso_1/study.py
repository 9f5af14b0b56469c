"""LASSO, data set I: Figure 3 of the paper."""

from experiments.fco.lasso import study

STUDY = study(1)
