"""Studies as data: problems, methods with their grids, what a paper says of them, and rules that decide it."""

from fedsolve.studies.cells import Cells
from fedsolve.studies.problem import Method, Problem
from fedsolve.studies.study import Decision, Statement, Study

__all__ = ["Cells", "Decision", "Method", "Problem", "Statement", "Study"]
