"""The cores of a CPU as devices of JAX: how many there are, and that JAX begins with all of them."""

from __future__ import annotations

import os

import jax

DEVICES_VARIABLE = "JAX_NUM_CPU_DEVICES"
_FLAG = "xla_force_host_platform_device_count"


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_number_given() -> bool:
    """Whether the number of devices of a CPU is given: in JAX's own settings, or by starting several processes."""
    given = jax.config.jax_num_cpu_devices >= 0  # pyright: ignore[reportAttributeAccessIssue]
    return (
        given
        or DEVICES_VARIABLE in os.environ
        or _FLAG in os.environ.get("XLA_FLAGS", "")
        or jax.distributed.is_initialized()
    )


def make_cores_devices() -> bool:
    """Let each core of a CPU be a device of JAX, where nobody gave another number and JAX has not begun.

    Returns:
        Whether it could: False where JAX has begun.
    """
    if is_number_given():
        return True
    try:
        jax.config.update("jax_num_cpu_devices", cores())
    except RuntimeError:  # JAX has begun
        return False
    return True
