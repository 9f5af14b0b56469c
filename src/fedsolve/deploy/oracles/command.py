"""A training loop that is a command, such as `torchrun train.py`: the model goes out and comes back as files."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedsolve.core import errors
from fedsolve.core.errors import ConfidentialError, InvalidInput
from fedsolve.deploy.processes import NOT_STARTED, SIGNALLED, TIMED_OUT, run_watched
from fedsolve.deploy.sanitize import sanitize
from fedsolve.folders.untrusted import loads, open_regular, read_bytes

RECEIVED, TRAINED, RESULTS = "model.safetensors", "trained.safetensors", "results.json"
"""Files of a round's folder: the model that was received, the trained one, and what is told of the training."""
_HEADER = 2**24  # bytes of a safetensors file beside its arrays
_LONGEST = 2**16  # bytes of the results
_LINES, _BYTES = 5, 4096  # of the end of the output that a refusal quotes


@dataclass(frozen=True)
class CommandLoop:
    """A training loop for `TrainedClient` that is a command, such as `torchrun`, `deepspeed` or `accelerate launch`.

    In each round it makes a folder, writes `model.safetensors` there, runs the command without a shell, and reads
    `trained.safetensors` and `results.json`, an object of numbers with `examples`. A module's `state_dict` goes out.
    Arrays of the same names, shapes and types come back: of a module at least the parameters that require gradients
    and the buffers. When the time is over, or this process ends in whatever way, the command is ended with all that it
    has started: by SIGTERM, and 15 s later by SIGKILL.

    Args:
        command: the program and its arguments; `{folder}` in them becomes the round's folder, which is then removed,
            `{state}` the node's state folder, which stays, and `{round}` the number of the round.
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
            given = errors.shown(words)
            raise InvalidInput(f'command = {given} must be a list of texts, such as ["torchrun", "train.py"]')
        errors.check_number("timeout", self.timeout, above=0)

    def __call__(self, model: Any, round: Any) -> Mapping[str, Any]:
        """Train a module or a dictionary of NumPy arrays in place; the numbers in the command's results."""
        state = getattr(round, "folder", None)
        folder = Path(tempfile.mkdtemp(prefix="round-", dir=state))
        own = dict(model) if isinstance(model, Mapping) else _tensors(model)
        try:
            arrays = {name: _array(x) for name, x in own.items()}
            save_file(arrays, folder / RECEIVED)
            words = list(self.command)
            for place, text in (("folder", folder), ("state", state or folder), ("round", int(round))):
                words = [word.replace(f"{{{place}}}", str(text)) for word in words]
            self._run(words, folder / "output.log")
            results = _read_results(folder / RESULTS)
            found = _read_arrays(folder / TRAINED, arrays)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        _assign(model, own, found)
        return results

    def _run(self, words: Sequence[str], log: Path) -> None:
        code = run_watched(words, self.timeout, log)
        if code == 0:
            return
        how = {TIMED_OUT: f"did not end in {self.timeout:g} s", NOT_STARTED: "could not be run"}.get(code)
        how = how or (
            f"was ended by signal {code - SIGNALLED}" if code > SIGNALLED else f"ended with exit code {code}"
        )
        with open_regular(log, follow=False) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _BYTES))
            text = file.read().decode(errors="replace")
        lines = [sanitize(line) for line in text.splitlines() if line.strip(" ^~")]  # no marks of tracebacks
        line = f"the command {errors.shown(self.command[0])} {how}"
        raise ConfidentialError(f"{line}: {' | '.join(lines[-_LINES:]) or 'it printed nothing'}", line)


def _tensors(module: Any) -> dict[str, Any]:
    return {name: t for name, t in module.state_dict(keep_vars=True).items() if hasattr(t, "dtype")}


def _array(value: Any) -> np.ndarray:
    if not isinstance(value, np.ndarray):
        from fedsolve.pytorch.translation.arrays import tensor_to_array

        value = tensor_to_array(value)
    return np.array(value, order="C")


def _read_results(path: Path) -> dict[str, float]:
    try:
        results = loads(read_bytes(path, _LONGEST, follow=False))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from None
    if not isinstance(results, dict) or "examples" not in results:
        raise InvalidInput(f"the command's {path.name} must be an object with the number of `examples`")
    for name, value in results.items():
        if not errors.is_plain_number(value) or not math.isfinite(value):
            given = errors.of_type(value)
            raise InvalidInput(
                f"'{sanitize(name)}' in the command's {path.name} is {given}: write a finite number"
            )
    return results


def _read_arrays(path: Path, sent: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    largest = sum(x.nbytes for x in sent.values()) + _HEADER
    try:
        with open_regular(path, follow=False) as file:
            if (size := os.fstat(file.fileno()).st_size) > largest:
                raise OSError(0, f"it has {size:,} bytes, more than {largest:,}")
        with safe_open(path, "numpy") as file:
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        raise _unreadable(path, error) from None
    for name, x in found.items():
        if name not in sent:
            raise InvalidInput(f"'{sanitize(name)}' in the command's {path.name} is no array of the model")
        given, wanted = (f"{a.shape} {a.dtype}" for a in (x, sent[name]))
        if given != wanted:
            raise InvalidInput(f"'{name}' in the command's {path.name} is {given}, in the model {wanted}")
        if not np.isfinite(x).all():
            raise InvalidInput(f"'{name}' in the command's {path.name} is not finite")
    return found


def _unreadable(path: Path, error: Exception) -> InvalidInput:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else error
    return InvalidInput(f"the command's {path.name} cannot be read: {sanitize(reason)}")


def _assign(model: Any, own: Mapping[str, Any], found: Mapping[str, np.ndarray]) -> None:
    is_module = not isinstance(model, Mapping)
    buffers = {id(b) for b in model.buffers()} if is_module else set()
    sent = {n: x for n, x in own.items() if not is_module or x.requires_grad or id(x) in buffers}
    for name, value in sent.items():
        if not any(
            other is value for n, other in own.items() if n in found
        ):  # tied weights have several names
            raise InvalidInput(f"'{name}' is missing in the command's {TRAINED}")
    for name in found.keys() & sent.keys():
        if is_module:
            from fedsolve.pytorch.translation.arrays import as_tensor

            wide = found[name].astype(np.float32) if found[name].dtype == "bfloat16" else found[name]
            sent[name].data.copy_(as_tensor(wide, sent[name]))
        else:
            sent[name][...] = found[name]
