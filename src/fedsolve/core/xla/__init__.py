"""What XLA or JAX does slowly or wrongly, each worked around in one place, and how XLA is asked to compile.

tests/engine/test_workarounds.py shows each of them in JAX as it is installed: a test that fails there says that the
workaround can go. All were seen with JAX 0.10.2, on CPUs.

* `direct`, `conv`, `convolutions`: the gradient of a convolution is 10 to 100 times slower inside a loop
  (https://github.com/jax-ml/jax/issues/12868), that of a maximum over windows several times slower than the gradient of
  slices (no report found).
* `cross_entropy`: exponentials of arrays whose last axes are short are computed one by one, and sums over the first of
  two axes by XLA's library take up to 18 times as long as its own loops (no reports found).
* `products.client_products`: products of several clients' small matrices over few examples take up to twice as long as
  sums of outer products, and products of one model with all clients' examples as columns transpose the examples first
  (no reports found). `python benchmarks/bench.py w6 w3` shows it: by hand are XLA's products.
* `decompositions`: batches of matrix decompositions in several programs at once wait for one another for good (no
  report found; https://github.com/jax-ml/jax/issues/39292 is of the same thread pool).
* `compiler.clear_caches_near_mapping_limit`: every program keeps memory mappings, of which Linux allows 65,530; beyond
  them the compiler aborts the process (no report found).

Six workarounds stay with what uses them: `fedsolve.engine.checks.gathers` has checkpoints and look-ups without indices
rewritten for checkify, which fails of them (no reports found), `fedsolve.engine.checks.losses` keeps programs that call
Python on one device, since on several of one process they wait for one another for good (no report found;
https://github.com/jax-ml/jax/issues/25861 is of such waiting on one),
`fedsolve.core.trees.array_is_finite` compares bits, since the maximum of numbers of which one is NaN may be a number
(https://github.com/openxla/xla/issues/21461),
`fedsolve.methods.robust.vectors` counts instead of sorting (a sort takes several times as long:
https://github.com/jax-ml/jax/issues/10434), and `fedsolve.engine.compute.train` does without `custom_vmap` where a loss
has buffers (no mutable array inside it; of `custom_jvp`: https://github.com/jax-ml/jax/issues/27470) and lets large
messages be computed where they are read (`tests/engine/test_chunks.py` shows how XLA writes them otherwise).
"""
