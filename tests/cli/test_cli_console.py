"""What files of others say reaches the terminal as text: it moves no cursor, hides no line and turns no word round."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest
from rich.table import Table

from fedsolve.cli import console, progress

HIDING = "FedAvg\x1b[8m\u202e\x9b2J"
SHOWN = "FedAvg\\x1b[8m\\u202e\\x9b2J"


def test_what_a_folder_names_is_shown(call):
    """Concealing ends no earlier than the line that says what would be imported."""
    method = f'[[method]]\nname = "mine:Fed"\nlabel = "{HIDING}"\n'.replace("\x1b", "\\u001b")
    Path("config.toml").write_text(f'task = "digits"\n{method}', encoding="utf-8")
    shown = call("show", ".")
    assert shown.code == 0
    assert f"{SHOWN}: waiting" in shown.out
    assert "running or resuming it imports the algorithm mine:Fed" in shown.out
    Path("config.toml").write_text('task = "\\u001b[2Jdigits"\n[[method]]\nname = "FedAvg"\n')
    ended = call("run", "--config", "config.toml")
    assert ended.code == 2
    assert "unknown task '\\x1b[2Jdigits'" in ended.err


@pytest.mark.parametrize("terminal", [False, True])
def test_a_table_keeps_its_own_colours_alone(monkeypatch, capsys, terminal):
    table = Table("[bold]name")
    table.add_row(HIDING)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1, raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((120, 40)))
    console.emit_rich(table)
    out = capsys.readouterr().out
    assert SHOWN in out
    assert ("\x1b[" in out) == terminal


def test_bars_and_names_that_no_encoding_has(monkeypatch, capsys):
    """A folder may be named by bytes that are no UTF-8."""
    console.say("in a\udcff\u2028")
    assert capsys.readouterr().err == "in a\\udcff\\u2028\n"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with progress.Bars([HIDING], 2) as bars:
        bars.begin(HIDING)
        bars.note(HIDING, HIDING)
    assert "\x1b" not in sys.stderr.getvalue()
    assert sys.stderr.getvalue().count(SHOWN) >= 2
