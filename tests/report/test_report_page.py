from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.report.page import write_page
from fedsolve.report.table import ResultTable

NASTY = '</script><script>alert("1")</script><!-- &amp; \u2028 ${title}'


class Reader(HTMLParser):
    """Collects elements, the text outside scripts and styles, and each script."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside = tag
            self.scripts += [""] * (tag == "script")

    def handle_endtag(self, tag: str) -> None:
        self.inside = "" if tag == self.inside else self.inside

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts[-1] += data
        elif not self.inside:
            self.words.append(data)


def read(path: Any) -> tuple[str, Reader, dict[str, Any]]:
    source = path.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(source)
    return source, reader, json.loads(reader.scripts[0])


def write(path: Any, histories: Any, **changes: Any) -> tuple[str, Reader, dict[str, Any]]:
    options: dict[str, Any] = {"title": "T"} | changes
    return read(write_page(path / "page.html", histories, **options))


def test_the_page_asks_for_nothing_outside(histories, tmp_path):
    source, reader, _ = write(tmp_path, histories)
    assert not re.search(r"https?://", re.sub(r"https?://www\.w3\.org/", "", source))
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|sendBeacon", source)
    for tag, attributes in reader.tags:
        links = [attributes.get(a) for a in ("src", "href", "srcset", "action", "poster", "data")]
        assert all(link is None or link.startswith("data:") for link in links), tag
    policy = next(a["content"] for t, a in reader.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'")


def test_the_licence_of_the_plotter_travels_with_it(histories, tmp_path):
    source, _, _ = write(tmp_path, histories)
    assert "Copyright (c) 2022 Leon Sorokin" in source
    assert "Permission is hereby granted" in source


def test_the_data_of_every_run_is_there(histories, tmp_path):
    _, _, data = write(tmp_path, histories)
    assert [run["name"] for run in data["runs"]] == [h.label for h in histories]
    for run, h in zip(data["runs"], histories, strict=True):
        for key, values in h.evaluations.items():
            np.testing.assert_allclose([float(v) for v in run["columns"][key]], values, rtol=1e-6)
        np.testing.assert_allclose(run["columns"]["megabytes"], h.megabytes(), rtol=1e-6)
        assert run["columns"]["server_lr"][0] == "NaN"
        assert run["columns"]["server_lr"][1] == pytest.approx(h.rounds["server_lr"][4], rel=1e-6)
    metrics = {m["key"]: m for m in data["metrics"]}
    assert next(iter(metrics)) == "test_accuracy"  # what methods are compared by
    assert metrics["train_loss"]["log"]
    assert not metrics["test_accuracy"]["log"]
    assert metrics["train_loss"]["averaged"]
    assert not metrics["client_loss_worst"]["averaged"]
    assert not {"round", "seconds", "megabytes", "train_loss_averaged"} & set(metrics)


def test_no_name_can_break_the_page(history, tmp_path):
    harmless = write(tmp_path, [replace(history, settings={"k": "v", "seed": 0})], notes=["n"])
    nasty = replace(history, label=NASTY, task=NASTY, settings={NASTY: NASTY, "seed": 0}, notes=(NASTY,))
    _, reader, data = write(tmp_path, [nasty], title=NASTY, how_tuned=NASTY)
    assert len(reader.scripts) == len(harmless[1].scripts) == 3
    assert reader.scripts[1:] == harmless[1].scripts[1:]
    assert data["runs"][0]["name"] == NASTY
    assert NASTY in "".join(reader.words)
    assert "alert" not in "".join(tag for tag, _ in reader.tags)
    assert NASTY not in ResultTable(NASTY, [NASTY], [[NASTY]], NASTY).html()


def test_numbers_of_a_cell_are_not_broken():
    html = ResultTable("c", ["m", "s", "v"], [["m 1", "client_lr 10, server_lr 0.1", "95.52 ± 1.3 %"]]).html()
    assert "client_lr\u00a010, server_lr\u00a00.1<" in html
    assert "95.52\u00a0±\u00a01.3\u00a0%" in html


def test_time_without_compilation_is_said_where_something_was_compiled(history, tmp_path):
    said = ["time excludes" in write(tmp_path, [replace(history, compile_seconds=s)])[0] for s in (0.0, 0.1)]
    assert said == [False, True]


def test_a_long_setting_is_not_pressed_into_a_column(history, tmp_path):
    methods = [f"FedOpt(local=SGD(lr={rate}), server_optimizer=ServerSGD(lr=1.0))" for rate in (0.1, 0.3)]
    runs = [replace(history, label=m[:20], settings={"algorithm": m, "seed": 0}) for m in methods]
    alone, _, _ = write(tmp_path, runs[:1])
    assert f'<div class="long"><dt>algorithm</dt><dd>{methods[0]}</dd></div>' in alone
    assert "<div><dt>seed</dt><dd>0</dd></div>" in alone
    two, _, _ = write(tmp_path, runs)
    assert re.search(rf'<td class="long" data-value="[^"]*">{re.escape(methods[1])}</td>', two)


def test_texts_and_settings_are_shown(histories, tmp_path):
    notes = [replace(histories[0], notes=("stopped early",)), *histories[1:]]
    _, reader, _ = write(
        tmp_path, notes, title="Title", how_tuned="First.\n\nSecond.\n\nBy grid.", notes=["A claim."]
    )
    words = [w.strip() for w in reader.words]
    for word in (
        "Title",
        "First.",
        "Second.",
        "By grid.",
        "A claim.",
        "FedAvg: stopped early",
    ):
        assert word in words
    assert "86.25" in words  # final accuracy of the first run, in percent
    assert "diverged" in words
    shared, differing = words.index("The same for all"), words.index("Different between methods")
    assert words.index("sampling") in range(shared, differing)
    assert words.index("algorithm") > differing
    assert "FedAvg()" in words  # its rate is the default


def test_what_is_not_known_has_no_line_and_folders_are_not_told(history, tmp_path):
    settings = history.settings | {"out": "/home/me/run", "task.path": "/home/me/data/x.csv"}
    source, reader, _ = write(
        tmp_path, [replace(history, settings=settings)], notes=["trace in /tmp/a/b.log"]
    )
    words = "".join(reader.words)
    assert "How the hyper-parameters were chosen" not in words
    assert "/home" not in source
    assert "x.csv" in words
    assert "trace in b.log" in words


def test_pictures_are_inside_and_described(history, tmp_path):
    pytest.importorskip("matplotlib")
    from fedsolve.report.plots import curves

    _, reader, _ = write(tmp_path, [history], pictures={"Accuracy over rounds.": curves([history])})
    (image,) = [a for t, a in reader.tags if t == "img"]
    assert image["alt"] == "Accuracy over rounds."
    assert str(image["src"]).startswith("data:image/png;base64,iVBOR")


def test_without_client_losses_that_section_is_left_out(history, tmp_path):
    kept = {k: v for k, v in history.evaluations.items() if not k.startswith("client")}
    _, reader, _ = write(tmp_path, [replace(history, evaluations=kept)])
    assert "Over the clients" not in reader.words
    assert "Over the clients" in write(tmp_path, [history])[1].words


def test_every_control_has_a_label(histories, tmp_path):
    source, reader, _ = write(tmp_path, histories)
    for kind in ("select", "input"):
        controls = len([1 for tag, _ in reader.tags if tag == kind])
        labelled = len(re.findall(rf"<label[^>]*>(?:(?!</label>).)*<{kind}\b", source, re.S))
        assert controls == labelled > 0
    assert ("html", {"lang": "en"}) in reader.tags


def test_no_histories_write_no_page(tmp_path):
    with pytest.raises(InvalidInput, match="at least one"):
        write_page(tmp_path / "page.html", [], title="T")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(history, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write"):
        write_page(tmp_path / "file" / "page.html", [history], title="T")
