"""Low-rank recovery, data set III: Figure 10 of the paper."""

from experiments.fco.lowrank import study

STUDY = study(3)
