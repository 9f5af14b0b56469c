"""What a wrapper with factors in place of matrices is made of, however it averages them."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any, Literal

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.types import Params, Scalar, module, static
from fedsolve.methods.low_rank.checks import check_inner, check_options
from fedsolve.methods.low_rank.factors import Factors, at_chosen, chosen_leaves, random_factors
from fedsolve.methods.wrappers.wrapper import Wrapper

Average = Literal["both", "A", "exact", "stack"]
_NAMES = {"both": "LoRA", "A": "FFA-LoRA", "exact": "FedEx-LoRA", "stack": "FLoRA"}


@module
class Factored(Wrapper):
    """Base class of `LowRank`: its arguments, its factors and the model that they stand for.

        W = W0 + s B A,   s = alpha / rank,   B = 0 and A random at the start

    Args:
        inner: the method of the factors.
        rank: of the factors.
        average: how they are averaged.
        leaves: which leaves have factors.
        alpha: None is the rank, for s = 1.

    Raises:
        InvalidInput: as `LowRank`.
    """

    inner: Algorithm
    rank: int = static()
    average: Average = static(default="both")
    _: KW_ONLY
    leaves: str | tuple[str, ...] = static(default="*")
    alpha: Scalar | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        patterns = check_options(self.rank, self.average, self.leaves, self.alpha)
        object.__setattr__(self, "leaves", patterns)
        check_inner(self.inner, self.title, self.average)

    @property
    def title(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name of the method, by how it averages."""
        return _NAMES.get(self.average, "LowRank")

    @property
    def factors(self) -> str:
        """How client updates differ from the model."""
        return "averaged" if self.average in ("both", "A") else "multiplied"

    @property
    def only_mean(self) -> str:
        """Why no other reduction will do."""
        return "the residual is of means" if self.average == "exact" else self.inner.traits.only_mean

    def diagnostics(self) -> tuple[Any, ...]:
        """None: those of `inner` are of factors."""
        return ()

    def _chosen(self, params: Params) -> Params:
        return chosen_leaves(params, tuple(self.leaves), self.rank)

    def _draw(self, base: Params, *numbers: Any) -> Params:
        return random_factors(base, self.rank, *numbers)

    def _trained(self, factors: Factors) -> Factors:
        """What is trained of factors."""
        return Factors(factors.b, None if self.average == "A" else factors.a)

    def _product(self, w: Any, factors: Factors) -> Any:
        """s B A, in the shape of a leaf."""
        s = 1.0 if self.alpha is None else self.alpha / self.rank
        return (s * (factors.b @ factors.a)).reshape(w.shape).astype(w.dtype)

    def _whole(self, base: Params, factors: Params) -> Params:
        """The model of factors."""
        if self.average == "A":
            drawn = self._draw(base)
            factors = at_chosen(lambda w, p, q: Factors(p.b, q.a), base, factors, drawn)
        return at_chosen(lambda w, p: w + self._product(w, p), base, factors)
