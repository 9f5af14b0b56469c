"""A training loop that is a command, such as `torchrun train.py`: the model goes out and comes back as files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedsolve.core.errors import ConfidentialError, InvalidInput, check_number, shown
from fedsolve.core.trees import named_leaves
from fedsolve.deploy.processes import NOT_STARTED, SIGNALLED, TIMED_OUT, run_watched
from fedsolve.deploy.sanitize import sanitize
from fedsolve.folders.untrusted import loads, open_regular, read_bytes
from fedsolve.tasks.training_loops import ReadyLoop, Trainee, check_form, form_of, type_in

RECEIVED, TRAINED, RESULTS = "model.safetensors", "trained.safetensors", "results.json"
"""Files of a round's folder: the model that was received, the trained one, and what is told of the training."""
_PREFIX = ".command-"
_HEADER = 2**24  # bytes of a safetensors file beside its arrays
_LONGEST = 2**16  # bytes of the results
_LINES, _BYTES = 5, 4096  # of the end of the output that a refusal quotes


@dataclass(frozen=True)
class CommandLoop(ReadyLoop):
    """A training loop for `TrainedClient` that is a command, such as `torchrun`, `deepspeed` or `accelerate launch`.

    In each round it makes a folder, writes `model.safetensors` there, runs the command without a shell, and reads
    `trained.safetensors` and `results.json`. Both models have the arrays of the same names, shapes and types: of a
    module the parameters that require gradients, each once where it is tied, and the buffers. The results are numbers
    by name, with `examples`. When the time is over, or this process ends in whatever way, the command is ended with
    all that it has started: by SIGTERM, and 15 s later by SIGKILL.

    Args:
        command: the program and its arguments, in which `{folder}` is the round's folder, which is then removed,
            `{state}` the folder that stays (`round.folder`), `{round}` the number of the round and `{data}`, in a
            simulation, the client's data as text.
        timeout: seconds that a round may take, > 0.

    Raises:
        InvalidInput: a command that is no list of texts, or a timeout out of its range; in a round: a command that
            does not start, or does not end in time and with exit code 0 (its last lines are for the node's log alone),
            files that are missing, damaged or too large, or arrays with other names, shapes or types, or that are not
            finite.

    >>> CommandLoop(["torchrun", "train.py", "{folder}"], timeout=3600).timeout
    3600
    """

    command: Sequence[str]
    timeout: float

    def __post_init__(self) -> None:
        words = self.command
        if not isinstance(words, list | tuple) or not words or not all(isinstance(w, str) for w in words):
            like = 'a list of texts, such as ["torchrun", "train.py"]'
            raise InvalidInput(f"command = {shown(words)} must be {like}")
        check_number("timeout", self.timeout, above=0)

    def __call__(self, model: Any, round: Any, data: Any = None) -> Mapping[str, Any]:
        own = Trainee(model)
        params, buffers = own.read(), own.buffers
        paths, leaves = named_leaves(params)
        kinds = map(type_in, own.form.values())
        sent = {p: np.asarray(x, kind, order="C") for p, x, kind in zip(paths, leaves, kinds, strict=True)}
        for left in round.folder.glob(f"{_PREFIX}*"):  # by a client that was killed
            shutil.rmtree(left, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=round.folder))
        places = {"folder": folder, "state": round.folder, "round": int(round), "data": data}
        try:
            save_file(sent | buffers, folder / RECEIVED)
            words = list(self.command)
            for place, value in places.items():
                words = [word.replace(f"{{{place}}}", str(value)) for word in words]
            self._run(words, folder / "output.log")
            with _reading(folder / RESULTS) as path:
                results = loads(read_bytes(path, _LONGEST, follow=False))
            with _reading(folder / TRAINED) as path:
                found = _read_arrays(path, sent | buffers)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        trained = [found[path].astype(x.dtype) for path, x in zip(paths, leaves, strict=True)]
        own.write(jax.tree.structure(params).unflatten(trained))
        own.load_buffers({name: found[name] for name in buffers})
        return results

    def _run(self, words: Sequence[str], log: Path) -> None:
        code = run_watched(words, self.timeout, log)
        if code == 0:
            return
        how = (
            f"was ended by signal {code - SIGNALLED}" if code > SIGNALLED else f"ended with exit code {code}"
        )
        known = {TIMED_OUT: f"did not end in {self.timeout:g} s", NOT_STARTED: "could not be run"}
        line = f"the command {shown(self.command[0])} {known.get(code, how)}"
        with open_regular(log, follow=False) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _BYTES))
            text = file.read().decode(errors="replace")
        lines = [sanitize(line) for line in text.splitlines() if line.strip(" ^~")]  # no marks of tracebacks
        raise ConfidentialError(f"{line}: {' | '.join(lines[-_LINES:]) or 'it printed nothing'}", line)


@contextmanager
def _reading(path: Path) -> Iterator[Path]:
    try:
        yield path
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidInput(f"the command's {path.name} cannot be used: {sanitize(reason)}") from None


def _read_arrays(path: Path, sent: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    largest = sum(x.nbytes for x in sent.values()) + _HEADER
    with open_regular(path, follow=False) as file:
        if (size := os.fstat(file.fileno()).st_size) > largest:
            raise ValueError(f"it has {size:,} bytes, more than {largest:,}")
    with safe_open(path, "numpy") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    check_form(form_of(found), form_of(sent))
    return found
