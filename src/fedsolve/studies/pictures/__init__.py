"""Pictures of studies: a method has one colour and line on every page; seeds are bands or points."""

from fedsolve.report.heatmap import Colours, draw_map
from fedsolve.report.plots import log_scale, new_figure, save, tidy
from fedsolve.report.style import LIGHT
from fedsolve.studies.pictures.against import Against
from fedsolve.studies.pictures.budgets import Budgets
from fedsolve.studies.pictures.curves import Along, Curves, Several
from fedsolve.studies.pictures.maps import Maps
from fedsolve.studies.pictures.panels import Line, Panel, Panelled
from fedsolve.studies.pictures.ranks import CriticalDifference

__all__ = [
    "LIGHT",
    "Against",
    "Along",
    "Budgets",
    "Colours",
    "CriticalDifference",
    "Curves",
    "Line",
    "Maps",
    "Panel",
    "Panelled",
    "Several",
    "draw_map",
    "log_scale",
    "new_figure",
    "save",
    "tidy",
]
