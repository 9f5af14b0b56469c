"""What methods share whose clients send slopes, and rebuild the model from slopes that they are sent."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY
from typing import Any, ClassVar, Literal

from fedsolve.core.algorithm import Algorithm
from fedsolve.core.errors import InvalidInput, check_integer, check_range, is_one_of
from fedsolve.core.schedules import Rate, as_rate
from fedsolve.core.types import Params, Scalar, Weighting, check_weighting, module, replace, static


@module
class RebuiltModel(Algorithm):
    """Base class: clients send slopes along directions that everybody can draw.

    They are sent scalars, from which they rebuild the model, or the model.

    Args:
        client_lr: eta > 0, a number or a schedule by round.
        mu: smoothing, > 0, in units of the parameters.
        most_steps: local steps of a client at most, None for as many as all clients take.
        down: what clients are sent, `scalars` or the `model`.
        weighting: p_i, `uniform` or by `examples`.

    Raises:
        InvalidInput: a number out of its range, an unknown choice.
    """

    sends_client_update: ClassVar[bool] = False

    client_lr: Rate = 1e-3
    _: KW_ONLY
    mu: Scalar = 1e-3
    most_steps: int | None = static(default=None)
    down: Literal["scalars", "model"] = static(default="scalars")
    weighting: Weighting = static(default="uniform")

    def __post_init__(self) -> None:
        object.__setattr__(self, "client_lr", as_rate("client_lr", self.client_lr))
        check_range("mu", self.mu, above=0)
        check_integer("most_steps", self.most_steps, 1, none="where all clients take as many steps", bits=31)
        if not is_one_of(self.down, ("scalars", "model")):
            raise InvalidInput(f"down = {self.down!r} must be 'scalars' or 'model'")
        check_weighting(self.weighting)

    @property
    def rebuilds(self) -> bool:
        """Whether clients rebuild the model."""
        return self.down == "scalars"

    @property
    def steps_sent(self) -> int:
        """Local steps that a message has slopes for.

        Raises:
            InvalidInput: their number is not known.
        """
        if self.most_steps is None:
            raise InvalidInput(
                f"{self.traits.name} sends slopes for each local step: set most_steps, the local steps of a client at "
                "most (fs.run finds out where all clients take as many, such as with local_steps)"
            )
        return self.most_steps

    def with_steps(self, steps: int | None) -> Algorithm:
        """The method whose messages have slopes for so many steps."""
        if self.most_steps is None:
            return replace(self, most_steps=steps)
        if steps is not None and steps > self.most_steps:
            raise InvalidInput(
                f"{self.traits.name}(most_steps={self.most_steps}): local steps are {steps}; leave most_steps out"
            )
        return self

    @abstractmethod
    def first_state(self, broadcast: Any) -> Any:
        """What a client keeps that rebuilds the model, before it first does."""

    def init_client(self, broadcast: Any) -> Any:
        """Nothing, where the model is sent."""
        self.model(broadcast)
        return ()

    def enrol(self, broadcast: Any, params: Params) -> Any:
        """What rebuilds the model, where it is not sent: the initial one is part of the broadcast."""
        return self.first_state(broadcast) if self.rebuilds else ()

    def model(self, broadcast: Any) -> Params:
        """The model, where it is sent."""
        if self.rebuilds:
            raise InvalidInput(
                f"clients of {self.traits.name} rebuild the model: inside a wrapper give it down='model'"
            )
        return broadcast.params

    def export(self, server: Any) -> Params:
        """The model."""
        return server.params
