"""A module as a JAX function, by its exported program."""
