"""Fetching: resumed where it stopped, limited, checked, and never half a file under its name."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedsolve.core.errors import InvalidInput
from fedsolve.tasks.datasets import download
from fedsolve.tasks.datasets.download import fetch

CONTENT = bytes(range(256)) * 40
SUM = hashlib.sha256(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    """Serves CONTENT: whole, from an offset, cut short, without a length, or not at all."""

    def do_GET(self):
        self.server.asked.append((self.path, self.headers.get("Range")))
        if self.path == "/silent":
            self.server.ended.wait(10)
            return
        if self.path == "/gone":
            self.send_error(404)
            return
        offset = self.headers.get("Range")
        start = (
            0 if offset is None or self.path == "/whole" else int(offset.removeprefix("bytes=").rstrip("-"))
        )
        if start >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if self.path != "/lengthless":
            self.send_header("Content-Length", str(len(CONTENT) - start))
        self.end_headers()
        end = 3_000 if self.path == "/cut" and offset is None else len(CONTENT)
        self.wfile.write(CONTENT[start:end])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked, running.ended = [], threading.Event()
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.ended.set()
        running.shutdown()
        thread.join()


def url(server, path):
    return f"http://127.0.0.1:{server.server_address[1]}{path}"


def test_a_file_comes_once(server, tmp_path):
    told = []
    path = tmp_path / "new" / "file"
    assert fetch(url(server, "/file"), path, 20_000, SUM, lambda *n: told.append(n)) == path
    assert path.read_bytes() == CONTENT
    assert told == [(len(CONTENT), len(CONTENT))]
    fetch(url(server, "/file"), path, 20_000, SUM)
    assert len(server.asked) == 1
    assert [p.name for p in path.parent.iterdir()] == ["file"]
    assert fetch(url(server, "/lengthless"), tmp_path / "b", 20_000).read_bytes() == CONTENT
    (tmp_path / "local").write_bytes(CONTENT)
    assert fetch((tmp_path / "local").as_uri(), tmp_path / "c", 20_000, SUM).read_bytes() == CONTENT


def test_what_was_cut_is_continued(server, tmp_path):
    path = tmp_path / "file"
    with pytest.raises(InvalidInput, match=r"after 3000 of 10240 bytes; the 3000 bytes so far are kept"):
        fetch(url(server, "/cut"), path, 20_000, SUM)
    assert not path.exists()
    assert fetch(url(server, "/cut"), path, 20_000, SUM).read_bytes() == CONTENT
    assert [offset for _, offset in server.asked] == [None, "bytes=3000-"]
    part = tmp_path / "other.part"
    part.write_bytes(CONTENT[:100])
    assert fetch(url(server, "/whole"), tmp_path / "other", 20_000).read_bytes() == CONTENT  # cannot continue
    part.write_bytes(CONTENT + b"more")
    with pytest.raises(InvalidInput, match="416"):
        fetch(url(server, "/file"), tmp_path / "third", 20_000) if part.rename(
            tmp_path / "third.part"
        ) else None
    assert fetch(url(server, "/file"), tmp_path / "third", 20_000).read_bytes() == CONTENT


def test_what_cannot_be_had_is_one_line_and_leaves_nothing(server, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "SECONDS", 0.2)
    for path, most, sha256, expected in [
        ("/silent", 20_000, None, "timed out; try again, or fetch it elsewhere"),
        ("/gone", 20_000, None, "the server says 404"),
        ("/file", 10_239, None, "is larger than the 10239 bytes it may have"),
        ("/file", 20_000, "0" * 64, f"has SHA-256 {SUM[:12]}, expected 000000000000"),
    ]:
        with pytest.raises(InvalidInput) as error:
            fetch(
                url(server, path), tmp_path / "new" / "x" if path != "/file" else tmp_path / "x", most, sha256
            )
        assert expected in str(error.value)
        assert "\n" not in str(error.value)
        assert not list(tmp_path.iterdir())
    address = url(server, "/file")
    server.shutdown()
    server.server_close()
    with pytest.raises(InvalidInput, match=r"cannot fetch .* refused; try again, or fetch it elsewhere"):
        fetch(address, tmp_path / "x", 20_000)
    (tmp_path / "damaged").write_bytes(b"old")
    with pytest.raises(InvalidInput, match="remove it and fetch it again"):
        fetch(address, tmp_path / "damaged", 20_000, SUM)
