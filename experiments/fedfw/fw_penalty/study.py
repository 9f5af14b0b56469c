"""The penalty lam0: Figure 4 of the paper."""

from experiments.fedfw.ablations import STUDIES

STUDY = STUDIES["fw-penalty"]
