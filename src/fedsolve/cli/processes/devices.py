"""What is settled before JAX starts: the devices of a CPU, and where compiled programs are kept."""

from __future__ import annotations

import os


def start_jax(devices: int | None = 1) -> None:
    """Keep compiled programs in the user's cache folder, and let a CPU count as `devices` devices, None for its cores.

    JAX's own variables (JAX_COMPILATION_CACHE_DIR, JAX_NUM_CPU_DEVICES) are respected. Where JAX has
    started already, the number of devices stays. No more devices than cores: they would wait for one another.
    """
    import jax

    from fedsolve.core.xla.compiler import DEVICES_VARIABLE, cores, make_cores_devices, use_compile_cache

    use_compile_cache()
    if devices is None:
        make_cores_devices()
    elif devices > 1 and DEVICES_VARIABLE not in os.environ:
        try:
            jax.config.update("jax_num_cpu_devices", min(devices, cores()))  # the engine refuses what is more
        except RuntimeError:  # JAX has started: the engine says how many devices there are
            return
