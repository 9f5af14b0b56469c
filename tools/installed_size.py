"""What fedsolve adds to an environment that has JAX: megabytes of files, by who asks for them.

    make dist    # runs it where the wheel was installed

Files that packages came with; the bytecode that pip and Python write beside them doubles those of Python.
"""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

CORE = ("optax", "jaxtyping", "safetensors")
COMMAND_LINE = ("typer", "rich", "pydantic", "tomli-w")


def needs(name: str, found: set[str]) -> set[str]:
    """A package's name, and those of all that it needs without extras, added to what was found."""
    if name not in found:
        found.add(name)
        for line in distribution(name).requires or ():
            asked = Requirement(line)
            if asked.marker is None or asked.marker.evaluate({"extra": ""}):
                needs(asked.name.lower().replace("_", "-"), found)
    return found


def megabytes(names: set[str]) -> float:
    """Of the packages' own files, without bytecode."""
    files = [Path(str(f.locate())) for name in names for f in distribution(name).files or ()]
    return sum(f.stat().st_size for f in files if f.suffix != ".pyc" and f.is_file()) / 1e6


def main() -> None:
    """One line each: the package, what its core needs beyond JAX, what its command line needs beyond that."""
    there = needs("jax", set())
    print(f"fedsolve: {megabytes({'fedsolve'}):.1f} MB")
    for what, names in ("optax, jaxtyping, safetensors", CORE), ("the command line", COMMAND_LINE):
        more = set().union(*(needs(name, set()) for name in names)) - there
        there |= more
        print(f"{what}: {megabytes(more):.1f} MB ({', '.join(sorted(more))})")


if __name__ == "__main__":
    main()
