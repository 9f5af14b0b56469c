"""Pictures of studies: a method has one colour and line on every page; seeds are bands or points."""

from fedsolve.report.plots import log_scale, new_figure, save, tidy
from fedsolve.report.style import LIGHT, Colours, draw_map
from fedsolve.studies.pictures.comparisons import Against, Budgets, CriticalDifference
from fedsolve.studies.pictures.curves import Along, Curves, Several
from fedsolve.studies.pictures.ends import Ends
from fedsolve.studies.pictures.maps import Maps
from fedsolve.studies.pictures.panels import Line, Panel, Panelled

__all__ = [
    "LIGHT",
    "Against",
    "Along",
    "Budgets",
    "Colours",
    "CriticalDifference",
    "Curves",
    "Ends",
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
