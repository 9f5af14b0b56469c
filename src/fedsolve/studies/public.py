"""What a study's own methods, tasks and rules are written with, where no namespace of `fedsolve` has it.

The studies in `experiments/` import `fedsolve`, its namespaces, `fedsolve.studies` and one another, and nothing else of
the package; `tests/structure` enforces it.
"""

from fedsolve.core import trees
from fedsolve.core.introspect import message_shape
from fedsolve.core.trees import quotient
from fedsolve.core.types import Batch, Params, Scalar, Traced, module, replace, reported, static
from fedsolve.core.xla.products import singular_values
from fedsolve.data.partitions import begin, finish
from fedsolve.methods.algorithms.feddr import DouglasRachford
from fedsolve.methods.server.dua import Spread
from fedsolve.methods.wrappers.wrapper import Wrapper
from fedsolve.report.table import ResultTable
from fedsolve.results.metrics import describe, wants_log
from fedsolve.results.sweep import SweepRecord
from fedsolve.tasks.losses.losses import OfOutputs
from fedsolve.tasks.models.models import CNNParams
from fedsolve.tasks.models.pictures import UpdatedParams
from fedsolve.tasks.ready.newsgroups import MATRICES, Tuning, fine_tuning
from fedsolve.tasks.ready.texts import VOCABULARY
from fedsolve.tasks.shared import classification, next_token

__all__ = [
    "MATRICES",
    "VOCABULARY",
    "Batch",
    "CNNParams",
    "DouglasRachford",
    "OfOutputs",
    "Params",
    "ResultTable",
    "Scalar",
    "Spread",
    "SweepRecord",
    "Traced",
    "Tuning",
    "UpdatedParams",
    "Wrapper",
    "begin",
    "classification",
    "describe",
    "fine_tuning",
    "finish",
    "message_shape",
    "module",
    "next_token",
    "quotient",
    "replace",
    "reported",
    "singular_values",
    "static",
    "trees",
    "wants_log",
]
