"""docs/privacy.md: its code runs and gives the numbers that it names."""

import re
from pathlib import Path

import pytest

from fedsolve.methods.privacy.accounting import epsilon, noise_multiplier_for

PAGE = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()


@pytest.mark.full
def test_code_and_numbers():
    pytest.importorskip("sklearn")
    block, sums, _ = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    *lines, logged, bound = block.strip().splitlines()
    names: dict = {}
    exec("\n".join(lines), names)
    for line, number in ((logged, "7.99"), (bound, "9.38")):
        expression, comment = line.split("#")
        assert number in comment
        assert f"{eval(expression, names):.2f}" == number
    exec(sums, names)
    assert names["result"].metrics["test_accuracy"][-1] > 0.8


@pytest.mark.full
def test_numbers_of_other_samplings():
    setting = {"cohort": 20, "population": 100, "delta": 1e-3}
    z = noise_multiplier_for(8.0, rounds=50, sampling="poisson", **setting)
    for sampling, number in (("fixed", "114"), ("none", "160")):
        assert f"{epsilon(z, 50, sampling=sampling, **setting):.3g}" == number
        assert f"| {number} |" in PAGE
