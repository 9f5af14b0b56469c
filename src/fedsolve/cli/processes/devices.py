"""What is settled before JAX starts: the devices of a CPU, and where compiled programs are kept."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"


def start_jax(devices: int = 1) -> None:
    """Keep compiled programs in the user's cache folder, and let the CPU count as `devices` devices.

    JAX's own variables (JAX_COMPILATION_CACHE_DIR, JAX_NUM_CPU_DEVICES) are respected. Where JAX has
    started already, the number of devices stays. No more devices than cores: they would wait for one another.
    """
    import jax

    from fedsolve.engine.compute.layout import cores

    if not os.environ.get(CACHE_VARIABLE):
        folder = _cache_folder()
        if folder is not None:
            jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    if devices > 1 and "JAX_NUM_CPU_DEVICES" not in os.environ:
        try:
            jax.config.update("jax_num_cpu_devices", min(devices, cores()))  # the engine refuses what is more
        except RuntimeError:  # JAX has started: the engine says how many devices there are
            return


def _cache_folder() -> Path | None:
    """The user's cache folder for compiled programs, None where it cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "fedsolve" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    return folder if os.access(folder, os.W_OK) else None
