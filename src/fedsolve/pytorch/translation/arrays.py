"""A PyTorch module as named arrays, in the types of a run: its parameters and buffers out, other ones in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from fedsolve.core.errors import InvalidInput, check_same, shown
from fedsolve.core.loss_checks import check_wide
from fedsolve.core.xla.compiler import return_memory

_RUN: ContextVar[tuple[torch.dtype, Any] | None] = ContextVar("run", default=None)


@contextmanager
def in_run_dtype(own: torch.dtype, run: Any) -> Iterator[None]:
    # inside, the type `own` of a module's parameters means the type `run` of the parameters that it is given
    token = _RUN.set((own, jnp.dtype(run)))
    try:
        yield
    finally:
        _RUN.reset(token)


def jax_dtype(dtype: torch.dtype | None) -> Any:
    """The JAX type of a PyTorch one, None for None; 64-bit types become 32-bit ones where JAX has them off.

    >>> jax_dtype(torch.int32), jax_dtype(None)
    (dtype('int32'), None)
    """
    if dtype is None:
        return None
    run = _RUN.get()
    if run is not None and dtype == run[0]:
        return run[1]
    if run is not None and dtype.is_complex and dtype == run[0].to_complex():
        return jnp.result_type(run[1], jnp.complex64)
    name = str(dtype).removeprefix("torch.")
    return jax.dtypes.canonicalize_dtype(jnp.dtype(name))


_NARROW = (torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32)


def to_tensor(array: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    # a copy; floating numbers in a type, integers as int64 (PyTorch takes no narrower ones for labels and few
    # for arithmetic), truths and bytes, which may be images, as they are
    t = torch.tensor(np.asarray(array))
    if t.is_floating_point():
        return t.to(dtype)
    return t.long() if t.dtype in _NARROW else t


def as_traced(value: Any, traced: Any) -> Any:
    # in the width of integers in which the input was traced (`to_tensor`); `traced` is PyTorch's tensor, or
    # None
    wide = getattr(traced, "dtype", None) == torch.int64 and jnp.issubdtype(value.dtype, jnp.integer)
    return value.astype(jax_dtype(torch.int64)) if wide else value


def as_array(tensor: torch.Tensor) -> np.ndarray:  # in the tensor's own memory where it can be
    tensor = tensor.detach().cpu().resolve_conj()
    return tensor.float().numpy().astype(jnp.bfloat16) if tensor.dtype == torch.bfloat16 else tensor.numpy()


def tensor_to_array(tensor: torch.Tensor) -> np.ndarray:
    return as_array(tensor).copy()


def parameters(module: nn.Module) -> dict[str, np.ndarray]:
    """Copies of the trainable parameters (`requires_grad`) by their names in the module.

    Args:
        module: read only.

    Returns:
        name -> array of the parameter's shape and type, such as `0.weight` (out, in).

    Raises:
        InvalidInput: nothing to train, parameters that have no shape yet, or ones in a type of 16 bits.
    """
    own = trainable(module)
    refuse_halves(module)
    return {name: tensor_to_array(p) for name, p in own.items()}


def buffers(module: nn.Module) -> dict[str, np.ndarray]:
    """Copies of a module's saved buffers by name, such as running statistics and counters; no masks (bool).

    Args:
        module: read only.

    Returns:
        name -> array of the buffer's shape and type; empty if it keeps none.
    """
    return {name: tensor_to_array(b) for name, b in buffer_tensors(module).items()}


def assign(
    module: nn.Module, params: Mapping[str, Any], buffers: Mapping[str, np.ndarray] | None = None
) -> None:
    """Copy a trained model's parameters into a module, in the module's types and on its device.

    Args:
        module: written to; its other parameters and buffers stay.
        params: name -> array of the parameter's shape, all of those that train.
        buffers: name -> array likewise; None leaves the module's own.

    Raises:
        InvalidInput: a name that is missing or unknown, or another shape; the first is named and nothing written.
    """
    pairs: list[tuple[str, Mapping[str, Tensor], Mapping[str, Any]]] = [
        ("parameter", trainable(module), params)
    ]
    if buffers is not None:
        pairs.append(("buffer", buffer_tensors(module), buffers))
    for kind, own, given in pairs:
        check_same(kind, {n: np.shape(v) for n, v in given.items()}, own)
    with torch.no_grad():
        for _, own, given in pairs:
            for name, tensor in own.items():
                tensor.copy_(_lent(given[name], tensor))


def _lent(value: Any, like: Tensor) -> Tensor:
    # what `copy_` reads: of JAX's array on a CPU its own memory
    is_here = isinstance(value, jax.Array) and value.dtype in (jnp.float32, jnp.float64)
    if is_here and {device.platform for device in value.devices()} == {"cpu"} and like.is_floating_point():
        return torch.from_dlpack(value)
    return as_tensor(value, like)


def copy_module(module: nn.Module) -> nn.Module:
    # what a part computed from its parameters and remembers, as `torch.nn.utils.weight_norm` and `prune` do,
    # is copied without its history, which PyTorch does not copy: it is computed again
    kept = [
        v for part in module.modules() for v in vars(part).values() if isinstance(v, Tensor) and not v.is_leaf
    ]
    return copy.deepcopy(module, {id(t): t.detach().clone() for t in kept})


def is_half(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.element_size() < 4


def without_halves(module: nn.Module) -> nn.Module:
    # the module itself, or of one with numbers of 16 bits a copy with these in float32, which changes none
    def halves(of: nn.Module) -> list[Tensor]:
        return [x for x in (*of.parameters(), *of.buffers()) if not is_lazy(x) and is_half(x)]

    if not halves(module):
        return module
    wide = copy_module(module)
    for tensor in halves(wide):
        tensor.data = tensor.data.float()
    return wide


def trained_copy(
    module: nn.Module, params: Mapping[str, Any], buffers: Mapping[str, Any] | None = None
) -> nn.Module:
    # with other parameters, frozen ones where they are given, and other values of some buffers
    own = copy_module(module)
    mine = trainable(own)
    assign(own, {name: params[name] for name in mine if name in params})
    with torch.no_grad():
        for name, parameter in own.named_parameters():
            if name not in mine and name in params:
                parameter.copy_(as_tensor(params[name], parameter))
        for name, value in (buffers or {}).items():
            own.get_buffer(name).copy_(as_tensor(value, own.get_buffer(name)))
    return own


def trainable(module: nn.Module) -> dict[str, nn.Parameter]:
    if not isinstance(module, nn.Module):
        raise InvalidInput(f"module = {shown(module)} must be a torch.nn.Module")
    params = {name: p for name, p in module.named_parameters() if p.requires_grad}
    if not params:
        raise InvalidInput(f"{type(module).__name__} has no trainable parameter: set requires_grad of some")
    for name, p in params.items():
        if isinstance(p, nn.parameter.UninitializedParameter):
            raise InvalidInput(f"parameter '{name}' has no shape yet: run the module once on a batch")
        if p.is_meta:
            raise InvalidInput(
                f"parameter '{name}' is on the meta device and has no values: call module.to_empty(device='cpu') and "
                "load weights"
            )
        if p.is_complex():
            raise InvalidInput(
                f"parameter '{name}' is complex: keep its real and imaginary parts along a last axis of 2, and make it "
                "complex in `forward` (torch.view_as_complex)"
            )
    return params


def buffer_tensors(module: nn.Module) -> dict[str, Tensor]:
    # those that the module saves and that are numbers
    saved = module.state_dict().keys()
    return {n: b for n, b in module.named_buffers() if n in saved and b.dtype != torch.bool}


def constant_tensors(module: nn.Module) -> dict[str, Tensor]:
    # what outputs depend on and no message has: frozen parameters, and buffers that are not saved or are
    # truths
    sent = trainable(module).keys() | buffer_tensors(module).keys()
    tensors = (*module.named_parameters(), *module.named_buffers())
    return {name: tensor.detach() for name, tensor in tensors if name not in sent}


def bytes_of(tensor: Tensor) -> np.ndarray:
    # of a tensor of any type and layout, uint8 (bytes,)
    if tensor.layout != torch.strided:
        sparse = tensor.to_sparse_coo().coalesce()
        return np.concatenate([bytes_of(sparse.indices()), bytes_of(sparse.values())])
    return tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy()


def as_tensor(value: Any, like: Tensor) -> Tensor:
    # in the type and on the device of `like`; a mean of integers is rounded
    array = np.asarray(value)
    if array.dtype == jnp.bfloat16:  # which PyTorch does not take from NumPy
        array = array.astype(np.float32)
    if not like.is_floating_point() and np.issubdtype(array.dtype, np.floating):
        array = np.rint(array)
    # a copy: arrays that JAX made cannot be written to, which PyTorch warns of
    return torch.tensor(array, dtype=like.dtype, device=like.device)


_LARGE = 4_000_000


def is_large(module: nn.Module) -> bool:
    # whether what is tried on it is worth its time and memory: with 27 million parameters a comparison of 24 rows took
    # half a minute and 5 GB
    return sum(p.numel() for p in module.parameters()) > _LARGE


@contextmanager
def memory_returned(module: nn.Module) -> Iterator[None]:
    # of a large one, before something is computed of it and afterwards
    if is_large(module):
        return_memory()
    yield
    if is_large(module):
        return_memory()


_SHARING = {"DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def check_weights(module: nn.Module) -> None:
    # also of wrappers that act by gradients, on other processes or for privacy, which no training here would
    # have them do
    for name, part in module.named_modules():
        if any(is_lazy(tensor) for tensor in (*part.parameters(False), *part.buffers(False))):
            raise InvalidInput(
                f"'{name}' ({type(part).__name__}) has weights of no shape yet: call the module once on a batch"
            )
        if getattr(part, "max_norm", None) is not None:
            raise InvalidInput(
                f"'{name}' ({type(part).__name__}) renormalises its own weights (max_norm): leave max_norm out"
            )
        if _SHARING & {c.__name__ for c in type(part).__mro__}:
            where = f"'{name}'" if name else "the module"
            raise InvalidInput(
                f"{where} ({type(part).__name__}) shares gradients or parameters with "
                "other processes: give the module that it wraps"
            )
    for name, p in module.named_parameters():
        if hasattr(p, "grad_sample"):
            raise InvalidInput(
                f"parameter '{name}' belongs to a privacy engine (grad_sample), whose clipping and noise would not "
                "run: give the module without it, and take fs.privacy.DifferentialPrivacy"
            )
        ends = p.detach().aminmax() if p.is_floating_point() and p.numel() and not p.is_meta else ()
        if any(end.isnan() or (end.isinf() and p.requires_grad) for end in ends):  # a mask may be -inf
            raise InvalidInput(f"parameter '{name}' has a number that is not finite: give finite weights")


def refuse_halves(module: nn.Module) -> None:
    floating = [
        (name, x) for name, x in module.named_parameters() if not is_lazy(x) and x.is_floating_point()
    ]
    types = ((name, str(x.dtype)[6:], x.element_size()) for name, x in floating)
    check_wide("the module", types, "convert it by module.float()")


def refuse_sparse(module: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> None:
    # no array of NumPy's or JAX's is sparse. tensors: those of the module that become arrays, None for all
    every = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, x in (every if tensors is None else tensors).items():
        if not is_lazy(x) and x.layout != torch.strided:
            raise InvalidInput(
                f"'{name}' of {type(module).__name__} is sparse ({str(x.layout)[6:]}): register it dense, or its "
                "indices and values as two buffers, of which forward makes it"
            )


@contextmanager
def substitute_tensors(
    module: nn.Module, tensors: Mapping[str, Tensor], values: Mapping[str, Tensor]
) -> Iterator[None]:
    # the tensors' data is exchanged, by name, and put back. The tensors themselves stay, so that a loss which
    # refers to the module's parameters sees the other values too; this also costs less than
    # `torch.func.functional_call`
    before = {name: (tensor.data, tensor.grad) for name, tensor in tensors.items()}
    modes = [(m, m.training) for m in module.modules()]
    try:
        for name, tensor in tensors.items():
            tensor.grad, tensor.data = None, values[name]
        yield
    finally:
        for name, tensor in tensors.items():
            tensor.grad = None
            tensor.data, tensor.grad = before[name]
        for m, training in modes:
            m.training = training


def mode_setter(module: nn.Module) -> Callable[[bool], None]:
    # parts that are in evaluation mode now, where the module itself is in training mode (frozen BatchNorm),
    # stay in it
    still = [part for part in module.modules() if module.training and not part.training]

    def set_mode(training: bool) -> None:
        module.train(training)
        for part in still:
            part.training = False

    return set_mode


@contextmanager
def preserve_attributes(*modules: Any) -> Iterator[None]:
    # afterwards modules remember what they did, whatever they counted or put in place of a buffer meanwhile
    parts = [part for m in modules if isinstance(m, nn.Module) for part in m.modules()]
    parts = [part for part in parts if not isinstance(part, torch.jit.ScriptModule)]
    before = [(p, dict(vars(p)), dict(p._buffers)) for p in parts]
    try:
        yield
    finally:
        for part, attributes, own in before:
            vars(part).clear()
            vars(part).update(attributes)
            part._buffers.clear()
            part._buffers.update(own)
