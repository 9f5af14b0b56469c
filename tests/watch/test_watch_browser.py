"""The page that follows runs, in a real browser: it opens, follows, zooms, filters, stops, and can be read."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from browser import Browser, chromium
from watch_made_up import CONFIG, finish, write_run

pytestmark = [pytest.mark.full, pytest.mark.skipif(chromium() is None, reason="there is no Chromium here")]

CONTRAST = """(() => {
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).map((v) => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (!colour.endsWith(", 0)")) return colour;
    }
  };
  const names = "h1, h2, p, th, td, label, button, span, select, input, a, .message";
  const seen = [...document.querySelectorAll(names)].filter((e) => e.textContent.trim() && e.checkVisibility());
  return seen.filter((e) => !e.closest(".unseen, fieldset:disabled")).map((e) => {
    const [less, more] = [light(getComputedStyle(e).color), light(ground(e))].sort((a, b) => a - b);
    return [(more + 0.05) / (less + 0.05), e.outerHTML.slice(0, 90)];
  }).filter(([ratio]) => ratio < 4.5);
})()"""
"""What has less contrast than WCAG's 4.5."""
ROWS = "document.querySelectorAll('#runs tbody tr').length"
PICTURE = "document.querySelector('canvas').toDataURL()"
SEEN = """Object.defineProperty(document, "hidden", {{ value: {}, configurable: true }});
document.dispatchEvent(new Event("visibilitychange"))"""
SHOWN = "document.getElementById('{}').innerText"


@pytest.fixture
def browser(tmp_path):
    opened = Browser(tmp_path / "profile")
    yield opened
    opened.close()


@pytest.fixture
def runs(tmp_path):
    """One that goes on and one that is finished."""
    folder = tmp_path / "runs"
    write_run(folder / "a", 40, [0.9, 0.5, 0.3])
    finish(folder / "b", "FedAvg", [0.9, 0.1])
    return folder


def shows(where, words):
    return f"{SHOWN.format(where)}.includes('{words}')"


def test_a_page_follows_its_runs(runs, follow, browser):
    server, client = follow(runs)
    browser.open(client.address)
    browser.until("document.querySelectorAll('.legend button').length === 2")
    browser.until(shows("line", "Live."))
    write_run(runs / "a", 80, [0.9, 0.5, 0.3, 0.2])
    browser.until(shows("runs", "80 of 100"))
    browser.until("document.querySelector('.legend').innerText.includes('0.2')")
    browser.ask(SEEN.format("true"))
    write_run(runs / "a", 90, [0.9, 0.5, 0.3, 0.2, 0.1])
    time.sleep(2.5)
    assert not browser.ask(shows("runs", "90 of 100"))
    browser.ask(SEEN.format("false"))
    browser.until(shows("runs", "90 of 100"))
    shutil.rmtree(runs)
    browser.until(shows("standing", "not there any more"))
    server.closing.set()
    server.shutdown()
    server.server_close()
    browser.until(shows("line", "does not answer"))
    assert all(url.startswith((client.address, "data:")) for url in browser.asked_for)
    assert not [text for text in browser.said if "ERR_" not in text]  # none but the server that has gone


def test_the_band_of_seeds_follows_them(tmp_path, follow, browser):
    folder = tmp_path / "runs" / "a"
    for seed in (0, 1):
        write_run(folder / f"seed-{seed}", 40, [0.9, 0.4 + seed / 10], seed)
    (folder / "config.toml").write_text("seeds = 2\n" + CONFIG)
    _, client = follow(tmp_path / "runs")
    browser.open(client.address)
    browser.until(shows("line", "Live."))
    browser.until("document.querySelector('.legend').innerText.includes('55 %')")
    before = browser.ask(PICTURE)
    for seed in (0, 1):
        write_run(folder / f"seed-{seed}", 80, [0.9, 0.5, 0.2 + seed / 10], seed)
    browser.until("document.querySelector('.legend').innerText.includes('75 %')")
    assert browser.ask(PICTURE) != before
    assert not browser.said


def test_a_zoom_stays_and_keys_read_values(runs, follow, browser):
    _, client = follow(runs)
    browser.size(1400)
    browser.open(client.address)
    browser.until(f"!!document.querySelector('.u-over') && {shows('line', 'Live.')}")
    x, y, width, height = browser.ask(
        "(({x, y, width, height}) => [x, y, width, height])(document.querySelector('.u-over').getBoundingClientRect())"
    )
    whole = browser.ask(PICTURE)
    browser.drag(x + 0.02 * width, y + 0.5 * height, x + 0.18 * width, y + 0.5 * height)
    browser.until(f"{PICTURE} !== {whole!r}")
    zoomed = browser.ask(PICTURE)
    write_run(runs / "a", 80, [0.9, 0.5, 0.3, 0.2, 0.1])  # before round 20 as it was
    browser.until(shows("runs", "80 of 100"))
    assert browser.ask(PICTURE) == zoomed
    browser.ask("document.querySelector('.chart').focus()")
    browser.press("ArrowRight", 39)
    browser.until("document.querySelector('.readout').textContent.startsWith('Communication round: ')")
    browser.press("Escape", 27)
    browser.until(f"{PICTURE} !== {zoomed!r}")


def test_filters_and_a_choice_by_the_keyboard(runs, follow, browser):
    _, client = follow(runs)
    browser.open(client.address)
    browser.until(f"{ROWS} === 2 && {shows('line', 'Live.')}")
    browser.ask("document.querySelector('input[name=words]').focus()")
    browser("Input.insertText", text="finished")
    browser.until(f"{ROWS} === 1")
    assert browser.ask("location.search") == "?words=finished"
    browser.ask("document.querySelector('input[name=words]').select()")
    browser.press("Backspace", 8)
    browser.until(f"{ROWS} === 2")
    for name in ("a", "b"):
        browser.ask(f"document.querySelector('[aria-label=\"Draw {name}\"]').focus()")
        browser.press(" ", 32)
        browser.until(f"location.search.includes('run={name}')")
        browser.until(shows("details", "Side by side"))  # the table was made anew with them
    browser.until("document.activeElement.getAttribute('aria-label') === 'Draw b'")


def test_it_can_be_read_on_any_screen(runs, tmp_path, follow, browser):
    _, client = follow(runs)
    browser.open(f"{client.address}?run=a&run=b")
    browser.until("document.querySelectorAll('.legend button').length === 2")
    for dark in (False, True):
        browser.dark(dark)
        for width in (400, 1400):
            browser.size(width)
            browser.until(f"innerWidth === {width}")
            assert browser.ask("document.documentElement.scrollWidth") <= width
            browser.picture(tmp_path / f"watch-{width}-{'dark' if dark else 'light'}.png")
        assert browser.ask(CONTRAST) == []


def test_a_button_stops_a_run_and_a_killed_one_is_seen(tmp_path, follow, browser):
    command = [
        sys.executable,
        "-m",
        "fedsolve",
        "run",
        "digits",
        "FedAvg",
        "--rounds",
        "1000000",
    ]
    started = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / "runs" / name)], stderr=subprocess.PIPE, text=True
        )
        for name in ("a", "b")
    ]
    _, client = follow(tmp_path / "runs")
    browser.open(client.address)
    browser.until("document.querySelectorAll('#runs form').length === 2", 90)
    browser.ask("document.querySelector('[aria-label=\"Stop a\"]').focus()")
    browser.press("Enter", 13)
    _, said = started[0].communicate(timeout=60)
    assert started[0].returncode == 130
    assert "resume with: fedsolve run --resume" in said
    os.kill(started[1].pid, signal.SIGKILL)
    started[1].communicate(timeout=60)
    browser.until("[...document.querySelectorAll('.status')].every((e) => e.dataset.status === 'stopped')")
    assert not (tmp_path / "runs" / "a" / "stop").exists()
