"""The server of `fedsolve watch`, on this machine alone: a page, its events, and stopping a run.

Whoever knows the address may read: a token in it keeps other users of the machine out, and the host that a browser
names is checked, so that no other site's page can reach it. Nothing that an address says is opened as a file.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import selectors
import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedsolve.cli.watch.runs import Folder
from fedsolve.cli.watch.watch_page import STATUSES, View, state, whole_page
from fedsolve.cli.watch.watched import Watched
from fedsolve.core.errors import InvalidInput
from fedsolve.folders.untrusted import read_text
from fedsolve.report.page import PAGE

HOST = "127.0.0.1"
_MOST_AT_ONCE = 256
_MOST_BYTES = 4096
_MOST_CHOSEN = 50
_LARGEST_PAGE = 2**28
_IDLE_SECONDS = 10.0
_HEARTBEAT_SECONDS = 15.0
_OWN = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
_POLICY = f"{_OWN}; connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
_SANDBOX = f"sandbox allow-scripts; {_OWN}"
"""Of a page that a run left: it may draw, and reach nothing."""


class WatchServer(ThreadingHTTPServer):
    """Follows the runs of a folder; a thread a connection.

    Args:
        folder: whose runs.
        port: 0 for a free one.

    Raises:
        InvalidInput: the folder does not exist, or the port is in use.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder, self.token = Folder(folder), secrets.token_urlsafe(24)
        self.closing = threading.Event()
        self._room = threading.Semaphore(_MOST_AT_ONCE)
        self._texts: tuple[int, dict[View, str]] = (-1, {})
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise InvalidInput(
                f"port {port}: {error.strerror or error}; choose another with --port"
            ) from None

    @property
    def address(self) -> str:
        """Where the page is."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, unless too many are at work."""
        if not self._room.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(
                    b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
                )
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Of one connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that goes away is no error."""

    def state_text(self, view: View) -> tuple[int, str]:
        """The state of a view as JSON, computed once for all that look at it; the version of the folder."""
        self.folder.look()
        version, texts = self._texts
        if version != self.folder.version:
            version, texts = self._texts = self.folder.version, {}
        if view not in texts:
            if len(texts) >= _MOST_AT_ONCE:
                texts.clear()
            texts[view] = json.dumps(state(self.folder, view))
        return version, texts[view]


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: WatchServer  # pyright: ignore[reportIncompatibleVariableOverride] (which is mutable there)
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "fedsolve", ""
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        """The page, its events, or a page that a run left."""
        place = self._place()
        if place is None:
            return
        view = self._view()
        if place == "":
            self._send(whole_page(self.server.folder, view))
        elif place == "events":
            self._follow(view)
        elif place == "page":
            self._left_page(view)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    def do_POST(self) -> None:
        """Ask a run to stop."""
        if self._place() != "stop":
            self.close_connection = True
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MOST_BYTES:
            self.close_connection = True
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {_MOST_BYTES} bytes")
            return
        names = parse_qs(self.rfile.read(int(length)).decode(errors="replace")).get("run", [])
        run = self._run(names[0] if names else "")
        if run is None:
            return
        try:
            run.ask_to_stop()
        except InvalidInput as error:
            self._refuse(HTTPStatus.CONFLICT, str(error))
            return
        self.send_response(HTTPStatus.SEE_OTHER)
        self.send_header("Location", "./")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is printed: the terminal belongs to the runs."""

    def _place(self) -> str | None:
        """What stands behind the token; None after a refusal, which says the same to all who do not know it."""
        host = self.headers.get("Host", "")
        _, token, *rest = [*urlsplit(self.path).path.split("/"), ""]
        known = secrets.compare_digest(token.encode(), self.server.token.encode())
        if host not in (f"{name}:{self.server.server_port}" for name in (HOST, "localhost")) or not known:
            self.close_connection = True
            self._refuse(HTTPStatus.NOT_FOUND, "not found: give the whole address that was printed")
            return None
        return "/".join(rest[:-1])

    def _view(self) -> View:
        given = parse_qs(urlsplit(self.path).query)
        status = given.get("status", [""])[0]
        return View(
            words=given.get("words", [""])[0][:200],
            status=status if status in STATUSES else "",
            chosen=tuple(given.get("run", [])[:_MOST_CHOSEN]),
        )

    def _run(self, name: str) -> Watched | None:
        """A run by name; None after a refusal."""
        run = self.server.folder.look().get(name)
        if run is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such run")
        return run

    def _left_page(self, view: View) -> None:
        """The page that a run left in its folder."""
        run = self._run(view.chosen[0] if view.chosen else "")
        if run is None:
            return
        try:
            self._send(read_text((run.page or run.folder) / PAGE, _LARGEST_PAGE, follow=False), _SANDBOX)
        except (OSError, UnicodeDecodeError):
            self._refuse(HTTPStatus.NOT_FOUND, "the run has no page")

    def _follow(self, view: View) -> None:
        """The state now and whenever it changes, as server-sent events."""
        self.close_connection = True
        self.send_response(HTTPStatus.OK)
        self._headers("text/event-stream", _POLICY)
        self.send_header("Connection", "close")
        self.end_headers()
        sent, said = "", 0.0
        with contextlib.suppress(OSError):
            while not self.server.closing.is_set():
                _, now = self.server.state_text(view)
                if now != sent:
                    self.wfile.write(f"data: {now}\n\n".encode())
                    sent, said = now, time.monotonic()
                elif time.monotonic() - said > _HEARTBEAT_SECONDS:
                    self.wfile.write(b": here\n\n")
                    said = time.monotonic()
                self.wfile.flush()
                if self._gone_after(1.0):
                    return

    def _gone_after(self, seconds: float) -> bool:
        """Whether the reader has closed the connection, within so many seconds; it frees its place at once."""
        with selectors.DefaultSelector() as reader:
            reader.register(self.connection, selectors.EVENT_READ)
            if not reader.select(seconds):
                return False
        if not self.connection.recv(_MOST_BYTES):
            return True
        self.server.closing.wait(seconds)  # it has said something, which no stream asks for
        return False

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self._send(f"{why}\n", status=status, kind="text/plain")

    def _send(
        self,
        content: str,
        policy: str = _POLICY,
        status: HTTPStatus = HTTPStatus.OK,
        kind: str = "text/html",
    ) -> None:
        data = content.encode()
        self.send_response(status)
        self._headers(f"{kind}; charset=utf-8", policy)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _headers(self, kind: str, policy: str) -> None:
        self.send_header("Content-Type", kind)
        self.send_header("Content-Security-Policy", policy)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")


@contextlib.contextmanager
def serving(folder: Path, port: int = 0) -> Iterator[WatchServer]:
    """A server at work in a thread of its own, which ends with the block."""
    with WatchServer(folder, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.2}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()
