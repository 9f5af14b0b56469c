"""LASSO, data set III: Figure 7 of the paper."""

from experiments.fco.lasso import study

STUDY = study(3)
