"""A headless Chromium that does what it is told through two pipes, by the DevTools protocol."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path


def chromium() -> str | None:
    """Where the browser is, None where there is none."""
    return shutil.which("chromium") or shutil.which("google-chrome")


class Browser:
    """One page in one browser."""

    def __init__(self, folder: Path) -> None:
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        options = (
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
        )
        command = f'exec "$0" "$@" about:blank 3<&{to_read} 4>&{to_write}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, str(chromium()), *options],
            pass_fds=(to_read, to_write), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_read)
        os.close(to_write)
        self._left, self._numbers, self._session = b"", itertools.count(1), None
        (target,) = (t for t in self("Target.getTargets")["targetInfos"] if t["type"] == "page")
        self._session = self("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime"):
            self(f"{domain}.enable")

    def __call__(self, method: str, **parameters):
        """What the browser answers to a command."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, address: str) -> None:
        """Go to an address."""
        self("Page.navigate", url=address)
        self.until("document.readyState === 'complete'")

    def ask(self, expression: str):
        """The value of an expression in the page."""
        found = self("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def until(self, expression: str, seconds: float = 20.0) -> None:
        """Wait until an expression holds."""
        end = time.monotonic() + seconds
        while not self.ask(expression):
            assert time.monotonic() < end, f"never: {expression}"
            time.sleep(0.1)

    def close(self) -> None:
        """End the browser."""
        with contextlib.suppress(OSError):
            os.close(self._write)
            os.close(self._read)
        self._process.terminate()
        self._process.wait(timeout=20)

    def _next(self):
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._read], [], [], 30)
            assert ready, "the browser says nothing"
            more = os.read(self._read, 1 << 20)
            assert more, "the browser has ended"
            self._left += more
        text, _, self._left = self._left.partition(b"\0")
        return json.loads(text)
