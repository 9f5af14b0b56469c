"""The page of twelve runs of 10,000 rounds opens in less than a second."""

from __future__ import annotations

import pytest
from browser import Browser, chromium

from fedsolve.report.page import write_page
from long_run import long_run


@pytest.mark.full
@pytest.mark.skipif(chromium() is None, reason="needs Chromium")
def test_a_page_of_long_runs_opens_at_once(tmp_path):
    page = write_page(tmp_path / "page.html", [long_run(i) for i in range(12)], title="long")
    browser = Browser(tmp_path / "profile")
    try:
        browser("Performance.enable")
        browser.open(page.as_uri())
        browser.until("document.querySelectorAll('canvas').length > 0")
        taken = {found["name"]: found["value"] for found in browser("Performance.getMetrics")["metrics"]}
        assert taken["ThreadTime"] < 1.0  # processor seconds of the page: others may use the machine
    finally:
        browser.close()
