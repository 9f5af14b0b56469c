"""Low-rank recovery, data set I: Figure 4 of the paper."""

from experiments.fco.lowrank import study

STUDY = study(1)
