"""Frank-Wolfe on convex problems: Table 1 of the paper."""

from experiments.fedfw.linear import STUDIES

STUDY = STUDIES["fw-convex"]
