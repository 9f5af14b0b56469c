"""Low-rank recovery, data set II: Figure 9 of the paper."""

from experiments.fco.lowrank import study

STUDY = study(2)
