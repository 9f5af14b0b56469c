"""Whether the gate notices: single changes to the code, each of which a named test must fail on.

    python tests/mutants/run.py                 every mutant of the lists beside this file, two at a time
    python tests/mutants/run.py engine weight   those whose area or name contains one of these words
    python tests/mutants/run.py --check         only that the lists fit the code as it is

A list, `<area>.toml`, has one table a mutant:

    [[mutant]]
    name = "mean-ignores-weights"                   unique
    file = "engine/compute/train.py"                       below src/fedsolve, or experiments/...
    old = 'weight if by == "mean" else used'        occurs exactly once in the file
    new = 'used'
    tests = ["tests/engine/test_reductions.py"]     what must notice, as pytest is told: files or single tests
    why = "a weighted mean counts clients alike"    what goes wrong, in one line

What caught a change must pass on the tree as it is, else nothing follows from its failing: it is run there at the end.
Tests are run as the gate runs them: without what is `full` or `alone`. The test that caught a change last time, by
`verdicts.md`, is run first, and the others only if it passes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
# what a mutant may change or write beside; the rest of the tree is linked
COPIED = ("src", "tests", "experiments")
TIMEOUT = 600.0  # seconds: a change that makes a loop endless is noticed, too
LATE = f"after {TIMEOUT:.0f} s"
# imported once, by the process that the tests' processes are forked from: two thirds of a short run are these imports
PRELOADED = ("jax", "jax.experimental", "optax", "pytest", "hypothesis", "scipy.stats", "torch")
PASSED, FAILED = 0, 1  # pytest's exit codes; all others mean that no verdict was reached


@dataclass(frozen=True)
class Mutant:
    """A single change, and who must notice."""

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str

    def path(self, root: Path) -> Path:
        """The file that it changes, in a tree."""
        return root / ("" if self.file.startswith("experiments/") else "src/fedsolve") / self.file


@dataclass(frozen=True)
class Verdict:
    """What the tests made of a mutant: whether it was caught, by which test, in how many seconds."""

    mutant: Mutant
    caught: bool
    by: str
    seconds: float


def load(folder: Path = HERE) -> list[Mutant]:
    """All mutants, list after list."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for row in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            found.append(Mutant(area=path.stem, **(row | {"tests": tuple(row["tests"])})))
    return found


def faults(mutants: Sequence[Mutant], root: Path = ROOT) -> Iterator[str]:
    """What is wrong with the lists, a line each."""
    for name, times in Counter(m.name for m in mutants).items():
        if times > 1:
            yield f"{name}: {times} mutants have this name"
    for m in mutants:
        path = m.path(root)
        text = path.read_text(encoding="utf-8") if path.is_file() else None
        if text is None:
            yield f"{m.name}: there is no {path.relative_to(root).as_posix()}"
        elif text.count(m.old) != 1:
            yield f"{m.name}: its old text occurs {text.count(m.old)} times in {m.file}, not once"
        elif path.suffix == ".py" and not _is_python(text.replace(m.old, m.new)):
            yield f"{m.name}: {m.file} with its change is no Python"
        if m.old == m.new:
            yield f"{m.name}: old and new are the same"
        if not m.tests:
            yield f"{m.name}: no test is named"
        for test in m.tests:
            file, *names = test.split("::")
            if not (root / file).is_file():
                yield f"{m.name}: there is no {file}"
            elif names and f"def {names[0].partition('[')[0]}(" not in (root / file).read_text(
                encoding="utf-8"
            ):
                yield f"{m.name}: {file} has no {names[0]}"


def _is_python(text: str) -> bool:
    try:
        compile(text, "", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


def copy_tree(into: Path) -> Path:
    """A tree that can be changed: the code and the tests copied, the rest linked."""
    into.mkdir()
    for entry in ROOT.iterdir():
        if entry.name in COPIED:
            shutil.copytree(
                entry, into / entry.name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
            )
        elif not entry.name.startswith("."):
            (into / entry.name).symlink_to(entry)
    return into


@contextmanager
def changed(tree: Path, mutant: Mutant) -> Iterator[None]:
    """The tree with this one change."""
    path = mutant.path(tree)
    before = path.read_text(encoding="utf-8")
    path.write_text(before.replace(mutant.old, mutant.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(before, encoding="utf-8")


def run_tests(tree: Path, tests: Sequence[str], *options: str) -> tuple[int, str]:
    """Pytest's exit code on these tests in this tree, FAILED after the timeout, and what it said."""
    command = ["-q", "--tb=line", "-m", "not full and not alone", "-o", "addopts=--strict-markers", *options]
    for plugin in ("cacheprovider", "randomly", "xdist"):
        command += ["-p", f"no:{plugin}"]
    command += tests
    with tempfile.TemporaryDirectory(prefix="said-") as folder:
        said = Path(folder) / "said"
        process = multiprocessing.get_context("forkserver").Process(
            target=_pytest, args=(tree, command, said)
        )
        process.start()
        process.join(TIMEOUT)
        if process.is_alive():
            process.kill()
            process.join()
            return FAILED, f"FAILED {LATE}"
        return process.exitcode or 0, said.read_text(encoding="utf-8", errors="replace")


def _pytest(tree: Path, command: list[str], said: Path) -> None:
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree / "src")
    sys.path.insert(0, str(tree / "src"))
    sys.dont_write_bytecode = True
    out = os.open(said, os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    code = pytest.main(command)
    sys.stdout.flush()
    os._exit(code)


def first_failure(output: str) -> str:
    """The test that failed first, as pytest's summary names it."""
    lines = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return lines[0].split(" ", 1)[1].partition(" - ")[0] if lines else "?"


@cache
def last_time() -> dict[str, str]:
    """The test that caught each mutant when `verdicts.md` was written."""
    text = (HERE / "verdicts.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| \S+ \| `([^`]+)` .* \| `([^`]+)` \|$", text, re.MULTILINE))


def judge(tree: Path, mutant: Mutant) -> Verdict:
    """Run the tests of a mutant; it counts as missed where they could not be run."""
    start = time.monotonic()
    first = [test for test in (last_time().get(mutant.name),) if test]
    with changed(tree, mutant):
        code, output = run_tests(tree, first, "-x") if first else (PASSED, "")
        if code != FAILED:  # it passes, or is gone
            code, output = run_tests(tree, mutant.tests, "-x")
    if code not in (PASSED, FAILED):  # such as tests that are all `full`
        print(f"error: {mutant.name}: pytest ended with {code}\n{output[-3000:]}", flush=True)
    return Verdict(
        mutant, code == FAILED, first_failure(output) if code == FAILED else "", time.monotonic() - start
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 if every mutant is caught, 1 if one is missed or the lists do not fit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only mutants whose area or name contains one of these")
    parser.add_argument("--check", action="store_true", help="only see whether the lists fit the code")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time (2)")
    parser.add_argument("--write", type=Path, help="write the verdicts as a table into this file")
    given = parser.parse_args(arguments)
    mutants = load()
    wrong = list(faults(mutants))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if wrong or given.check:
        print(f"{len(mutants)} mutants, {len(wrong)} faults in their lists")
        return 1 if wrong else 0
    if given.words:
        mutants = [
            m for m in mutants if any(w in (m.area, *m.name.split("-")) or w in m.name for w in given.words)
        ]
    with tempfile.TemporaryDirectory(prefix="mutants-") as temporary:
        trees: SimpleQueue[Path] = SimpleQueue()
        for i in range(given.jobs):
            trees.put(copy_tree(Path(temporary) / str(i)))
        verdicts = all_verdicts(mutants, trees, given.jobs)
    missed = [v.mutant.name for v in verdicts if not v.caught]
    total = sum(v.seconds for v in verdicts)
    print(f"{len(verdicts) - len(missed)} of {len(verdicts)} mutants caught, {total:.0f} s of tests")
    if given.write:
        given.write.write_text(table(verdicts), encoding="utf-8")
    return 1 if missed else 0


def all_verdicts(mutants: Sequence[Mutant], trees: SimpleQueue[Path], jobs: int) -> list[Verdict]:
    """Each mutant, then what caught them on the tree as it is; several trees at once."""

    def with_tree(work, *inputs):
        tree = trees.get()
        try:
            return work(tree, *inputs)
        finally:
            trees.put(tree)

    def one(mutant: Mutant) -> Verdict:
        verdict = with_tree(judge, mutant)
        said = f"caught by {verdict.by}" if verdict.caught else f"MISSED: {mutant.why}"
        print(f"{verdict.seconds:6.1f} s  {mutant.area}: {mutant.name}: {said}", flush=True)
        return verdict

    multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOADED))
    with ThreadPoolExecutor(jobs) as pool:
        verdicts = list(pool.map(one, mutants))
        files: dict[str, set[str]] = {}
        # a timeout names no test
        for test in (v.by.partition("[")[0] for v in verdicts if v.caught and v.by != LATE):
            files.setdefault(test.partition("::")[0], set()).add(test)
        for code, output in pool.map(lambda tests: with_tree(run_tests, sorted(tests)), files.values()):
            if code != PASSED:
                said = f"what caught a change fails without it (exit code {code})"
                raise SystemExit(f"error: {said}\n{output[-3000:]}")
    return verdicts


def table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts in Markdown."""
    lines = [
        "# What the gate notices",
        "",
        "Written by `make mutants`: single changes to `src/`, and the test that failed.",
    ]
    lines += ["", "| area | change | what goes wrong | caught by |", "|---|---|---|---|"]
    for v in verdicts:
        by = f"`{v.by}`" if v.caught else "**missed**"
        lines.append(
            f"| {v.mutant.area} | `{v.mutant.name}` in `{v.mutant.file}` | {v.mutant.why} | {by} |".replace(
                "|S|", "size"
            )
        )
    caught = sum(v.caught for v in verdicts)
    return "\n".join([*lines, "", f"{caught} of {len(verdicts)} are caught.", ""])


if __name__ == "__main__":
    sys.exit(main())
