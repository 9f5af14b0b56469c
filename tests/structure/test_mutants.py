"""The lists of `make mutants` fit the code: each change can still be made, and names tests that there are."""

from __future__ import annotations

import pytest

from mutants import run as mutants


def test_the_lists_fit_the_code():
    assert list(mutants.faults(mutants.load())) == []


GOOD = {
    "file": "errors.py",
    "old": "a = 1",
    "new": "a = 2",
    "tests": ("tests/test_a.py::test_a[1]",),
    "why": "w",
}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"file": "gone.py"}, "there is no src/fedsolve/gone.py"),
        ({"old": "a = 3"}, "occurs 0 times"),
        ({"old": "1"}, "occurs 2 times"),
        ({"new": "a = 1"}, "the same"),
        ({"new": "a = ("}, "no Python"),
        ({"tests": ()}, "no test"),
        ({"tests": ("tests/test_b.py",)}, "there is no tests/test_b.py"),
        ({"tests": ("tests/test_a.py::test_b",)}, "has no test_b"),
    ],
)
def test_a_list_that_does_not_fit_is_told(tmp_path, change, said):
    for path, text in {
        "src/fedsolve/errors.py": "a = 1\nb = 1\n",
        "tests/test_a.py": "def test_a(x):\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    good = mutants.Mutant("engine", "n", **GOOD)
    assert list(mutants.faults([good], tmp_path)) == []
    (line,) = mutants.faults([mutants.Mutant("engine", "n", **(GOOD | change))], tmp_path)
    assert said in line
    twice = list(mutants.faults([good, good], tmp_path))
    assert twice == ["n: 2 mutants have this name"]
