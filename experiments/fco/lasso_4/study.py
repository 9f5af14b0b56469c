"""LASSO, data set IV: Figure 8 of the paper."""

from experiments.fco.lasso import study

STUDY = study(4)
