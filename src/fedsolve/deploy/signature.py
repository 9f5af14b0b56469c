"""What server and clients compare: shapes and types of a model in one line, and what else decides a client's results.

That is in no message. Settings of a loss are what it was made with; what a function closes over is left out, as it may
be a site's own by intent, such as frequencies of its classes.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.core.types import Params
from fedsolve.engine.identity import digest
from fedsolve.tasks.leaves import refuse_halves

_PLAIN = (bool, int, float, complex, str, type(None))
_DECIDES_NOTHING = ("training", "inplace")  # how a part is used is told by what it does to buffers


def signature(tree: Any) -> str:
    """Shapes and types of all leaves in one line.

    >>> signature({"w": np.zeros((2, 3), np.float32)})
    "['w'] float32[2,3]"
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return "; ".join(
        f"{jax.tree_util.keystr(path) or 'value'} {jnp.dtype(x.dtype)}{list(np.shape(x))}".replace(", ", ",")
        for path, x in leaves
    )


def signature_digest(tree: Any) -> str:
    return digest(signature(tree))


def compare_signatures(ours: str, theirs: str, client: int) -> None:
    """Raise `InvalidInput`, naming the first difference, unless a client's model is the server's."""
    if ours == theirs:
        return
    pairs = zip_longest(ours.split("; "), theirs.split("; "), fillvalue="nothing")
    mine, wanted = next((a, b) for a, b in pairs if a != b)
    raise InvalidInput(
        f"the model of client {client} has {mine} where the server's has {wanted}: build both from the same code"
    )


def constant_digests(constants: Mapping[str, Any]) -> list[str]:
    """`name digest` of each array, in the order of names: of its shape, type and bytes."""

    def of(array: np.ndarray) -> str:
        return hashlib.sha256(f"{array.dtype}{array.shape}".encode() + array.tobytes()).hexdigest()[:16]

    return [f"{name} {of(x)}" for name, x in sorted(constants.items())]


def check_constants(digests: Any) -> list[str]:
    """What another one sent as `constant_digests`; `InvalidInput` for anything else."""
    if not isinstance(digests, list) or not all(
        isinstance(d, str) and " " in d and len(d) < 1000 for d in digests
    ):
        raise InvalidInput("its constants are no names and digests: another version of fedsolve?")
    return digests


def usual_constants(clients: Sequence[Sequence[str]]) -> dict[str, str]:
    """For each name the digest that most clients have, "" for none; of as many the first one's."""
    own = [dict(pair.rsplit(" ", 1) for pair in digests) for digests in clients]
    usual = {}
    for name in dict.fromkeys(name for one in own for name in one):
        having = [one for one in own if name in one] if _may_lack(name) else own
        usual[name] = Counter(one.get(name, "") for one in having).most_common(1)[0][0]
    return usual


def _may_lack(name: str) -> bool:
    # Whether a client may not have it: without a table, with a buffer that moves, in another framework.
    return name == "columns" or name.startswith(("buffer ", "schema.toml, ", "loss: ", "layer "))


def other_constant(digests: Sequence[str], usual: Mapping[str, str]) -> str | None:
    """The first name under which a client has another digest than is usual; None if all are the usual ones."""
    own = dict(pair.rsplit(" ", 1) for pair in digests)
    names = (name for name in usual if name in own or not _may_lack(name))
    return next((name for name in names if own.get(name, "") != usual[name]), None)


def settings(
    function: Any, name: str, of_tensor: Callable[[Any], np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """Numbers, texts and arrays that a function was made with, by name.

    They are the arguments of a `functools.partial`, the fields of a dataclass or a named tuple, the attributes and
    tensors of a PyTorch module and of its parts; `of_tensor` gives a tensor's bytes.

    >>> settings(functools.partial(np.clip, a_min=0), "loss")
    {'loss: a_min': array('0', dtype='<U1')}
    """
    found = {}
    for path, value in _settings_by_path(function):
        bytes_ = of_tensor(value.detach()) if of_tensor and hasattr(value, "detach") else value
        found |= {f"{name}: {path}": x for x in _array(bytes_)}
    return found


def layer_settings(module: Any) -> dict[str, np.ndarray]:
    """The kind and the settings of each layer of a PyTorch module that PyTorch itself defines."""
    # A user's own class may be called otherwise at another site, and its attributes be counters or places of files.
    found = {}
    for path, layer in module.named_modules():
        if type(layer).__module__.startswith("torch.nn."):
            told = {"kind": type(layer).__name__, **_attributes(layer)}
            found |= {
                f"layer {path or 'of all'}: {name}": x for name, value in told.items() for x in _array(value)
            }
    return found


def _settings_by_path(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, functools.partial):
        parts: dict[str, Any] = {**{str(i): a for i, a in enumerate(value.args)}, **value.keywords}
        yield from _settings_by_path(value.func, path)
    elif hasattr(value, "named_modules"):
        parts = {**value._parameters, **value._buffers, **value._modules, **_attributes(value)}
    elif is_dataclass(value) and not isinstance(value, type):
        parts = {f.name: getattr(value, f.name, None) for f in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        parts = value._asdict()  # pyright: ignore[reportAttributeAccessIssue]
    else:
        if path:
            yield path, value
        return
    for name, part in parts.items():
        yield from _settings_by_path(part, f"{path}.{name}" if path else name)


def _attributes(module: Any) -> dict[str, Any]:
    # A module's public attributes, without its parts and tensors.
    return {n: v for n, v in vars(module).items() if n[0] != "_" and n not in _DECIDES_NOTHING}


def _array(value: Any) -> Iterator[np.ndarray]:
    # A setting as an array whose bytes tell it; none of what is no setting, such as a function.
    if isinstance(value, _PLAIN):
        yield np.array(repr(value))
    elif isinstance(value, np.ndarray | np.generic | jax.Array):
        if (array := np.array(value)).dtype != object:
            yield array
    elif isinstance(value, tuple | list) and all(isinstance(x, _PLAIN) for x in value):
        yield np.array(repr(tuple(value)))


def float_type(params: Params) -> Any:
    """The common type of a model's leaves, float64 also where JAX has 64-bit types switched off."""
    leaves = jax.tree.leaves(params)
    if not leaves or not all(hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating) for x in leaves):
        raise InvalidInput(
            "the model must be floating-point arrays, at least one, in any tree: give its parameters"
        )
    refuse_halves("the model", params)
    return jnp.dtype(np.result_type(*(np.dtype(x.dtype) for x in leaves)))


def check_model(params: Params) -> None:
    """Raise `InvalidInput` unless a model is finite floating-point arrays of at least 32 bits."""
    float_type(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if not np.isfinite(np.asarray(leaf)).all():
            where = jax.tree_util.keystr(path) or "an array"
            raise InvalidInput(
                f"{where} of the model has a number that is not finite: begin with finite ones"
            )


def precision_of(params: Params) -> Any:
    """The context in which a model's floating-point type exists."""
    return jax.enable_x64(float_type(params) == jnp.float64)
