"""The pages of the documentation site: docs/, README.md, and what the catalogue and the kept experiments tell.

python tools/site/assemble.py            # writes site/pages anew; `make docs` then builds site/html from it
"""

from __future__ import annotations

import inspect
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from diagrams import as_pictures
from notebooks import TUTORIALS, executed

import fedsolve
from fedsolve.config.catalogue import ALGORITHMS, Entry, load_home, short, title
from fedsolve.studies.reproduce import program_folders

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))  # of the package `experiments`

from experiments.figures import ITEMS  # noqa: E402

PAGES = ROOT / "site" / "pages"
GUIDES = {
    "Privacy": ("what-is-protected", "privacy", "security-model"),
    "How to: problems": (
        "own-data", "pooled-statistics", "pytorch", "networks", "language-models", "tasks",
        "pytorch-operations",
    ),
    "How to: methods": (
        "methods", "optax", "choosing", "settings", "tuning-free", "composite", "personalisation",
        "adding-an-algorithm",
    ),
    "How to: runs": ("command-line", "json", "sweep", "studies", "scale", "simulated-time"),
    "How to: deployment": (
        "deployment", "training-loops", "deployment-operations", "communication",
    ),
}  # fmt: skip
"""The pages of docs/ by what a reader looks for; those about the project itself are named in `assemble`."""
AUTHORS = (
    "Algorithm", "Cohort", "Oracle", "WrappedOracle", "Wrapper", "build", "catalogue", "client", "server", "wire",
)  # fmt: skip
"""Names that an author of methods needs: their reference stands apart from that of users."""
FIRST = ("run", "compare", "sweep", "load", "Result", "Seeds", "Results", "Sweep", "Task")
"""Names that a page of the reference begins with."""

TYPES = (
    "In signatures `Scalar` is a number or an array of shape (), `Rate` a scalar or a schedule by round, `Params` a "
    "pytree of arrays (a model, or values of its shapes), `Batch` a pytree of arrays whose first axis is the examples."
)


def assemble() -> None:
    """Write all pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for path in (ROOT / "docs").iterdir():
        if path.suffix == ".md":
            (PAGES / path.name).write_text(
                linked(as_pictures(path.read_text(encoding="utf-8"))), encoding="utf-8"
            )
        elif path.suffix in (".png", ".svg", ".json"):
            shutil.copy(path, PAGES)
    shutil.copytree(ROOT / "docs" / "diagrams", PAGES / "diagrams")
    home = linked((ROOT / "README.md").read_text(encoding="utf-8")).replace("](docs/", "](")
    (PAGES / "changelog.md").write_text((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), encoding="utf-8")
    extra = PAGES.parent / "extra" / "experiments"
    shutil.rmtree(extra, ignore_errors=True)
    extra.mkdir(parents=True)
    shutil.copy(ROOT / "experiments" / "index.html", extra)
    for page in sorted((ROOT / "experiments").glob("*/*/page.html")):
        to = extra / page.parent.relative_to(ROOT / "experiments")
        to.mkdir(parents=True)
        shutil.copy(page, to)
    index = (ROOT / "llms.txt").read_text(encoding="utf-8").replace("](docs/", "](").replace(".md)", ".html)")
    (extra.parent / "llms.txt").write_text(index, encoding="utf-8")
    tutorials = [notebook(name, f"tutorials/{name}") for name in TUTORIALS]
    groups = {
        "Start": ["quickstart.md", "predict.md", "train-further.md"],
        "Tutorials": [*tutorials, notebook("gallery")],
    }
    groups |= {name: [f"{page}.md" for page in pages] for name, pages in GUIDES.items()}
    groups |= {"Every method": list(method_pages())}
    groups |= {f"Reference for {reader}": list(reference_pages(reader)) for reader in ("users", "authors")}
    project = [
        "figures",
        "benchmarks",
        "benchmarks-gpu",
        "versioning",
        "architecture",
        "internals",
        "glossary",
        "changelog",
    ]
    groups |= {"The project": [f"{page}.md" for page in project]}
    for name, pages in groups.items():
        home += f"\n```{{toctree}}\n:hidden:\n:caption: {name}\n\n" + "\n".join(pages) + "\n```\n"
    (PAGES / "index.md").write_text(home, encoding="utf-8")


def linked(text: str) -> str:
    """Names of pages as links by their titles; kept experiments, which Sphinx does not know, as links that it leaves.

    >>> linked("See `docs/sweep.md`, and `fedsolve list tasks`.")
    'See [Sweeps](sweep.md), and `fedsolve list tasks`.'
    >>> linked("[lasso](../experiments/fco/lasso/page.html)")
    '<a href="experiments/fco/lasso/page.html">lasso</a>'
    >>> linked("[lasso][l]\\n\\n[l]: ../experiments/fco/lasso/page.html")
    '<a href="experiments/fco/lasso/page.html">lasso</a>\\n\\n'
    """
    text = re.sub(r"`docs/([\w-]+)\.md`", lambda name: f"[{_title(name[1])}]({name[1]}.md)", text)
    experiment = r"(?:\.\./)?(experiments/[\w./-]+)"
    for label, page in re.findall(rf"^\[(\w+)\]: {experiment}$", text, re.MULTILINE):
        text = text.replace(f"][{label}]", f"]({page})")
    text = re.sub(rf"^\[\w+\]: {experiment}$", "", text, flags=re.MULTILINE)
    return re.sub(rf"\[([^]]*)\]\({experiment}\)", r'<a href="\2">\1</a>', text)


def _title(page: str) -> str:
    with (ROOT / "docs" / f"{page}.md").open(encoding="utf-8") as text:
        return text.readline().removeprefix("# ").strip()


def notebook(name: str, page: str = "") -> str:
    """The page of an executed notebook, which begins with a link to itself; its name."""
    import nbformat

    page = f"{page or name}.ipynb"
    found = nbformat.read(executed(name), as_version=4)
    offered = PAGES.parent / "extra" / "notebooks" / f"{name}.ipynb"
    offered.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(found, offered)
    up = "../" * page.count("/")
    link = f'<a class="download" href="{up}notebooks/{name}.ipynb" download>This page as a notebook</a>'
    first = found.cells[0]
    first.source = first.source.replace("\n", f"\n\n{link}\n", 1)
    (PAGES / page).parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(found, PAGES / page)
    return page


def method_pages() -> Iterator[str]:
    """A page for each method of the catalogue, after one that lists them."""
    rows = ["# Every method", "", "| method | | paper |", "|---|---|---|"]
    rows += [f"| [{name}]({name}.md) | {e.summary} | {short(e.citation)} |" for name, e in ALGORITHMS.items()]
    yield write("methods/index.md", rows)
    for name, entry in ALGORITHMS.items():
        yield write(f"methods/{name}.md", method_page(name, entry))


def method_page(name: str, entry: Entry) -> list[str]:
    """What a method's docstring says (update, what travels, settings), its papers, and where they were repeated."""
    lines = [f"# {name}", "", f"{entry.summary[0].upper()}{entry.summary[1:]}.", ""]
    lines += [f"    fedsolve run digits {name}", ""]
    if entry.wrapper:
        lines += [f"Around any method X it is `{name}+X`, such as `{name}+FedAdam`.", ""]
    lines += [reference(entry.home), "", "## Papers", ""]
    lines += [f"* {short(key)}, “{title(key)}”" for key in entry.papers]
    cited = (e for item in ITEMS if item.paper in entry.papers for e in item.experiments)
    pages = {e: program_folders()[e] / "page.html" for e in cited}
    kept = {e: page.relative_to(ROOT).as_posix() for e, page in pages.items() if page.is_file()}
    if kept:
        links = ", ".join(f'<a href="../{page}">{e}</a>' for e, page in kept.items())
        lines += ["", f"Reproduced here: {links}. [The index](../figures.md) has the verdicts."]
    return lines


def reference_pages(reader: str) -> Iterator[str]:
    """For a kind of reader: a page for the names of the package that are no methods, and one for each public module."""
    methods = {entry.home for entry in ALGORITHMS.values()} | {entry.wrapper for entry in ALGORITHMS.values()}
    homes = {name: home for name, home in fedsolve._homes().items() if home not in methods}
    homes = {name: home for name, home in homes.items() if (name in AUTHORS) == (reader == "authors")}
    order = sorted(homes, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    own = [
        f"# fedsolve, for {reader}",
        "",
        "`import fedsolve as fs`; methods have pages of their own.",
        "",
        TYPES,
        "",
    ]
    for name in order:
        if not homes[name].endswith(":"):
            own += [f"## fs.{name}", "", reference(homes[name]), ""]
    yield write(f"reference/fedsolve-{reader}.md", own)
    for name in order:
        if homes[name].endswith(":"):
            yield write(f"reference/{name}.md", [f"# fs.{name}", "", reference(homes[name])])


def reference(home: str) -> str:
    """What autodoc makes the reference of."""
    module, _, name = home.partition(":")
    if not name:
        return f"```{{eval-rst}}\n.. automodule:: fedsolve.{module}\n   :members:\n```"
    kind, options = ("class", "\n   :members:") if inspect.isclass(load_home(home)) else ("function", "")
    return f"```{{eval-rst}}\n.. auto{kind}:: fedsolve.{module}.{name}{options}\n```"


def write(name: str, lines: Sequence[str]) -> str:
    """A page; its name."""
    path = PAGES / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return name


if __name__ == "__main__":
    assemble()
