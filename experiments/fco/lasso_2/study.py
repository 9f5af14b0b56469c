"""LASSO, data set II: Figure 6 of the paper."""

from experiments.fco.lasso import study

STUDY = study(2)
