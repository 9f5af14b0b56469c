"""Low-rank recovery, data set IV: Figure 11 of the paper."""

from experiments.fco.lowrank import study

STUDY = study(4)
