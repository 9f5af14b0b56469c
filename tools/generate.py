"""What is generated: the package's stub, pages of the docs, the README's table, the graph of packages, indices.

python tools/generate.py            # writes what has changed, and says which files those are
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

import benchmark_page  # beside this file
import communication_page
import figures
import json_documents
import optax_table
import package_graph
import settings_table

import fedsolve
from fedsolve.config.build import loop_support
from fedsolve.config.catalogue import ALGORITHMS, WRAPPERS, Entry, short

ROOT = Path(__file__).parent.parent


def generated() -> dict[str, str]:
    """The text of every generated file, by its path in the repository."""
    pages = {
        "src/fedsolve/__init__.pyi": stub(),
        "src/fedsolve/tasks/__init__.pyi": stub_of_tasks(),
        "docs/json.md": json_documents.page(),
        json_documents.SCHEMAS: json_documents.text(),
        "docs/methods.md": methods(),
        "docs/communication.md": communication_page.page(),
        "docs/optax.md": optax_table.page(),
        "docs/benchmarks.md": benchmark_page.page(),
        "docs/benchmarks-gpu.md": benchmark_page.gpu_page(),
        "src/fedsolve/engine/compute/accelerators.json": benchmark_page.accelerators(),
        "README.md": benchmark_page.with_table((ROOT / "README.md").read_text()),
    }
    pages |= {"docs/figures.md": figures.markdown(), "experiments/index.html": figures.page()}
    pages["docs/architecture.md"] = package_graph.with_graph((ROOT / "docs/architecture.md").read_text())
    pages[package_graph.PICTURE] = package_graph.picture(
        package_graph.reduced(package_graph.package_imports())
    )
    if importlib.util.find_spec("torch"):
        pages["docs/pytorch-operations.md"] = operations()
    return pages | {"docs/settings.md": settings_table.page(), "llms.txt": index()}


def index() -> str:
    """`llms.txt`: every page of docs/ with its first sentence, for programs that look for one to read."""
    pages = {path: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
    lines = [
        f"* [{text.splitlines()[0][2:]}](docs/{path.name}): {_first(text)}" for path, text in pages.items()
    ]
    package = (fedsolve.__doc__ or "").splitlines()[0]
    return "\n".join([f"# {package.partition(':')[0]}", "", f"> {package}", "", "## Pages", "", *lines, ""])


def _first(page: str) -> str:
    """The first sentence below the title, on one line."""
    paragraph = " ".join(page.split("\n\n")[1].split())
    return re.split(r"(?<=\.) (?=[A-Z`[])", paragraph)[0]


def stub() -> str:
    """`__init__.pyi`: every name of the package where it is, for editors and type checkers."""
    lines = [
        "# made by `make generate`: the names of __init__.py and of the catalogue",
        "# ruff: noqa: I001",
        "",
    ]
    homes = fedsolve._homes()
    lines += sorted(_import(name, home) for name, home in homes.items())
    # a stub exports what is imported under its own name, and what is assigned
    assigned = [
        f"{name} = _{name}" for name, home in homes.items() if _import(name, home).endswith(f" as _{name}")
    ]
    return "\n".join([*lines, "", *assigned, "", "__version__: str", ""])


def stub_of_tasks() -> str:
    """The same of `fedsolve.tasks`."""
    lines = ["# made by `make generate`: the names of __init__.py", "# ruff: noqa: I001", ""]
    lines += sorted(_import(name, f"{module}:{name}") for name, module in fedsolve.tasks._HOMES.items())
    return "\n".join([*lines, ""])


def _import(name: str, home: str) -> str:
    module, _, inside = home.partition(":")
    if not inside:
        module, _, inside = f".{module}".rpartition(".")
        module = module.removeprefix(".")
    module = f"fedsolve{f'.{module}' if module else ''}"
    return f"from {module} import {inside} as {name if inside == name else f'_{name}'}"


def methods() -> str:
    """`docs/methods.md`: every name of the catalogue, what it needs, and its paper."""
    lines = [
        "# Methods",
        "",
        "For readers who look for a method: its name in fedsolve and its requirements;",
        "`docs/choosing.md` recommends methods. `fs.NAME(...)` makes a method in Python, `fedsolve run TASK NAME`",
        "runs it, and `NAME+X` puts a wrapper around any method X. `fedsolve cite` prints all papers of a method.",
        "",
        'Every method runs in a deployment. Methods with the words "own loops" also run with clients that have their',
        "own training loop (`fs.flower.TrainedClient`).",
        "",
    ]
    return "\n".join([*lines, *_listed(), ""])


def _listed() -> Iterator[str]:
    for name, entry in ALGORITHMS.items():
        around = f"; `{name}+X`" if entry.wrapper else ""
        yield f"* `{name}`: {entry.summary}{around}{_needs(entry)}{_loop(name)} ({_papers(entry)})"
    for name, entry in WRAPPERS.items():
        if name not in ALGORITHMS:
            loop = _loop(f"{name}+FedAvg")
            yield f"* `{name}+X`: X with {entry.summary}{_needs(entry)}{loop} ({_papers(entry)})"


def _needs(entry: Entry) -> str:
    needed = ", ".join(f"`{key}`" for key in entry.example if key != "weighting")
    return f"; needs {needed}" if needed else ""


def _loop(name: str) -> str:
    """Whether a method runs with clients that have a training loop of their own, and what that must return."""
    found = loop_support(name)
    if found.refused:
        return ""
    told = ", ".join(f"`{x}`" for x in found.needs)
    return f"; own loops that return {told}" if told else "; own loops"


def _papers(entry: Entry) -> str:
    """The first paper, by its first author and year."""
    return short(entry.papers[0]).replace(" et al.", "")


def operations() -> str:
    """`docs/pytorch-operations.md`: what of PyTorch has an equivalent in JAX."""
    from fedsolve.pytorch.operations import OPERATIONS

    packets: dict[str, list[str]] = {}
    for name in sorted(OPERATIONS):
        operation, _, overload = name.removeprefix("aten.").partition(".")
        packets.setdefault(operation, []).append(overload)
    listed = (
        name if found == ["default"] else f"{name}.{'|'.join(found)}" for name, found in packets.items()
    )
    lines = [
        "# PyTorch's operations in JAX",
        "",
        "For readers with a module that `from_torch` (`docs/pytorch.md`) could not translate:",
        f"which operations have an equivalent: these {len(OPERATIONS)} of ATen, and every function that `torch.export`",
        "decomposes into them (linear, conv2d, cross_entropy, silu, einsum and many more). An error names the missing",
        "operation. Overloads other than `default` follow the name, as in `add.Scalar|Tensor`.",
        "",
        "`" + "` `".join(listed) + "`",
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Write what has changed: the table of settings first, of which a page tells."""
    if settings_table.update():
        print(settings_table.TABLE)
    for path, text in generated().items():
        if not (ROOT / path).exists() or (ROOT / path).read_text() != text:
            (ROOT / path).write_text(text)
            print(path)


if __name__ == "__main__":
    main()
