"""Plots of sweeps: a map over two axes, the best over the grid along one, the best setting, methods compared."""

from fedsolve.report.sweeps.sweep_lines import best_over_grid, sensitivity, share_within
from fedsolve.report.sweeps.sweep_map import heat_map, pairs

__all__ = ["best_over_grid", "heat_map", "pairs", "sensitivity", "share_within"]
