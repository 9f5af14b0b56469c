"""The interface between a deployment and a client's data, and what the owner of a client app is told of its node."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from jaxtyping import Array

from fedsolve.core.algorithm import Algorithm, name_of
from fedsolve.core.buffers import Buffers
from fedsolve.core.errors import InvalidInput, check_same
from fedsolve.core.oracle import Oracle
from fedsolve.core.types import Params, Scalar
from fedsolve.data.tables import FORMAT_KEYS
from fedsolve.deploy.message import PartMetrics

STATE_FOLDER = "fedsolve-state"
"""Where clients' states are unless the node says otherwise: below the folder that the SuperNode was started in."""


def states_of(node_config: Mapping[str, Any]) -> Path:
    return Path(str(node_config.get("state-dir", STATE_FOLDER)))


@dataclass(frozen=True)
class NodeContext:
    """The node on which a client app runs; it is passed to `oracle_for`.

    Attributes:
        client: the client's number, from 0 (`client-id`, or else `partition-id`, of the node's configuration).
        site: the name that the server knows it by: `site` of the node's configuration, or the name of its CSV file
            without `.csv`; '' where there is neither.
        node_config: the node's configuration, as `--node-config` gave it.
        run_config: the run's configuration.
    """

    client: int
    site: str
    node_config: dict[str, Any]
    run_config: dict[str, Any]

    @property
    def data(self) -> Path:
        """The location of the node's data: `data` in its configuration.

        Raises:
            InvalidInput: the configuration does not say.
        """
        if "data" not in self.node_config:
            raise InvalidInput(
                "the node does not say where its data are: start it with --node-config 'data=\"/data/north.csv\"'"
            )
        return Path(str(self.node_config["data"]))

    @property
    def file_format(self) -> dict[str, Any]:
        """What its configuration says of how the node's table is written, for `Schema.read_csv`."""
        return {key: self.node_config[key] for key in FORMAT_KEYS if key in self.node_config}


# The interface between a deployment and a client's data: a model of known shape, and an oracle for every round.


class LocalProblem(ABC):
    """One client's data with its loss, as a deployment sees it."""

    params: Params  # a model of the right shapes and types; its values do not matter
    num_examples: int
    # whether `loss` and `full` of its oracles evaluate the loss itself, the same at the same parameters and step; a
    # line search compares such losses
    exact_loss: bool = True
    # names of what it can measure a model by; None where any name may be asked for
    metrics: Collection[str] | None = ()
    # arrays by name that all clients must share and no message has, such as frozen parameters. A client with others
    # than most clients is refused.
    constants: Mapping[str, np.ndarray] = MappingProxyType({})
    # what the schemas say that its data were held against when it was made, by part; shared as `constants`
    schemas: Mapping[str, np.ndarray] = MappingProxyType({})
    # what is to be said in the run's record of what was given and plays no part, lines without data
    notes: Collection[str] = ()
    framework: str = "jax"  # the distribution that its own code runs on, as the server is told it
    # buffers that local work writes inside the compiled program; None where there are none, or where the problem's own
    # code keeps them
    beside: Buffers | None = None
    # for what its own code keeps in this experiment; set by who runs it
    folder: Path = Path(STATE_FOLDER) / "client"
    # what this problem's own code raises inside a compiled program leaves such a block as it was raised; the block must
    # wait for the program's results (`jax.block_until_ready`)
    failing_plainly: Callable[[], AbstractContextManager[None]] = nullcontext
    untold: str = ""  # what its messages do not tell, 'loss' or ''

    @property
    def initial(self) -> Params:
        """The model with the values that leaves begin with which a client keeps to itself."""
        return self.params

    @property
    def shared(self) -> dict[str, np.ndarray]:
        return {**self.constants, **self.schemas}

    @property
    def buffers(self) -> dict[str, np.ndarray]:
        """The buffers, which are sent with the parameters and averaged, by name; {} if there are none.

        After local work it waits until all of that work is done.
        """
        return {}

    @property
    def moving_buffers(self) -> Collection[str]:
        """The names of the buffers that training is known to change; all of them where it is not known."""
        return self.buffers.keys()

    def load_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        check_same("buffer", buffers, {})

    @contextmanager
    def restored(self) -> Iterator[None]:
        """After this block the buffers, and whatever else its work has written to this problem, are as before it."""
        beside, buffers = self.beside, {name: np.array(x) for name, x in self.buffers.items()}
        try:
            yield
        finally:
            if beside is not None:
                self.beside = beside
            elif buffers:
                self.load_buffers(buffers)

    @abstractmethod
    def begin(self, key: Array, client: Scalar, dtype: Any, noise: Array | None = None) -> Oracle:
        """The oracle of one round.

        It is a pytree: it may be made inside a compiled function, or outside and handed in as an argument; then
        the client's examples are no part of the program, which compiles faster and can be cached.

        Args:
            key: the round's random key; shuffles, dropout and augmentation follow from it and `client` alone.
            client: the client's number.
            dtype: type of the parameters, float32 or float64 (which needs 64-bit types enabled).
            noise: the key that a method draws its own noise from; by default it follows from `key`, as in the
                compiled engine.
        """

    def begin_steps(self, key: Array, client: Scalar, dtype: Any, steps: int) -> Oracle:
        """The oracle of a number of local steps, for fine-tuning before a client is evaluated."""
        raise InvalidInput(f"this {type(self).__name__} cannot fine-tune: it has no method begin_steps")

    def measure(self, params: Params, metrics: Collection[str]) -> dict[str, PartMetrics]:
        """Evaluate a model on this client's examples, with the buffers that were loaded last.

        Args:
            metrics: their names, some of `self.metrics`.

        Returns:
            Those of its training examples as `train`; of those that it holds out, if it does, as `validation`.
        """
        raise InvalidInput(f"this {type(self).__name__} measures no model: it has no method measure")


def check_needs(algorithm: Algorithm, problem: LocalProblem) -> None:
    """Raise `InvalidInput` if a method needs what a client's problem cannot give."""
    searches = getattr(getattr(algorithm, "local", None), "searches", False)
    if searches and not problem.exact_loss:
        raise InvalidInput(
            f"{name_of(algorithm)} searches along a line and needs exact losses, which this "
            f"{type(problem).__name__} does not give (exact_loss = False): take a method with a learning rate"
        )
