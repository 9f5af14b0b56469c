"""What a run of the tests says at its end, what of it is left out on this machine, and how much it may take."""

from __future__ import annotations

import importlib.util
import os
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

PARTS = {"flwr": "Flower", "torch": "PyTorch"}
"""Packages that `make test` goes on without, and what they are called."""
LOOP_SECONDS = 0.025
"""What `_loop` takes on the machine for which CONTRIBUTING states the times; a slower one may take longer."""


def missing_parts() -> dict[str, str]:
    """The parts that are not installed here."""
    return {name: title for name, title in PARTS.items() if importlib.util.find_spec(name) is None}


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


class LeftOut:
    """Tests that need a part which is not here are skipped, and the reason names it."""

    def __init__(self, missing: dict[str, str]) -> None:
        self.missing = missing

    def reason(self, said: str) -> str:
        """Why a test that ended with these words was left out; "" if it failed for another reason."""
        for name, title in self.missing.items():
            reason = f"{title} is not installed"
            if any(
                words in said
                for words in (f"No module named '{name}", f"metadata was found for {name}", reason)
            ):
                return reason
        return ""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: Any) -> Generator[None, Any, Any]:
        """A module of tests that cannot be imported."""
        report = yield
        if report.outcome == "failed" and (reason := self.reason(str(report.longrepr))):
            report.outcome = "skipped"
            report.longrepr = str(collector.path), 1, f"Skipped: {reason}"
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        """A test whose code imports it."""
        return (yield from self._skipping())

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self) -> Generator[None, Any, Any]:
        """A fixture whose code imports it."""
        return (yield from self._skipping())

    def _skipping(self) -> Generator[None, Any, Any]:
        try:
            return (yield)
        except Exception as error:
            if reason := self.reason(" ".join(str(cause) for cause in causes(error))):
                pytest.skip(reason)
            raise


class Ending:
    """The last line: what passed, what was skipped and why, the processor's time and the clock's."""

    def __init__(self, config: pytest.Config, cache: Path) -> None:
        self.most = config.getoption("--most-processor-seconds")
        self.cached = sum(1 for _ in cache.glob("*-cache")) if cache.is_dir() else 0

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Complete the line that pytest ends with."""
        self.session = session
        self.reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
        build = self.reporter.build_summary_stats_line

        def build_with_reasons() -> tuple[list[tuple[str, dict[str, bool]]], str]:
            parts, colour = build()
            found = [(text + self._reasons(text), markup) for text, markup in parts]
            return [*found, (f"{processor_seconds():.0f} s of processor time", {})], colour

        self.reporter.build_summary_stats_line = build_with_reasons

    def _reasons(self, part: str) -> str:
        """What is said after a part of the line: after "3 skipped", why."""
        if not part.endswith(" skipped"):
            return ""
        skipped = [str(report.longrepr[-1]) for report in self.reporter.stats["skipped"]]
        counts = Counter(reason.removeprefix("Skipped: ") for reason in skipped).most_common()
        return f" ({'; '.join(f'{count}: {reason}' for reason, count in counts)})"

    def pytest_terminal_summary(self) -> None:
        """What took too long."""
        if self.most and (seconds := processor_seconds()) > (most := self.most * max(1.0, slowness())):
            cache = f"{self.cached} programs were in the cache" if self.cached else "the cache was empty"
            said = f"the tests took {seconds:.0f} s of processor time, of at most {most:.0f} here ({cache})"
            self.reporter.write_line(said, red=True)
            self.session.exitstatus = pytest.ExitCode.TESTS_FAILED


def processor_seconds() -> float:
    """Of this process and its children that have ended: at the end of a run, of all workers and what they started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def slowness() -> float:
    """How much slower than on the machine of CONTRIBUTING's times this one runs Python, at its best of some tries."""
    return min(_loop() for _ in range(10)) / LOOP_SECONDS


def _loop() -> float:
    start = time.process_time()
    total = 0
    for number in range(1_000_000):
        total += number % 7
    return time.process_time() - start
