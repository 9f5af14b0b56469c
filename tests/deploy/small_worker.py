"""A worker whose program does what a message's token says; it is started as the worker of a node, without Flower."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

from fedsolve.deploy.persistent.worker import main


class SmallProgram:
    """Runs `--token "bundle:what"`, and notes in the file `log` when it begins and ends a message."""

    def __init__(self, is_next_waiting) -> None:
        if os.environ.get("UNKNOWN"):
            raise RuntimeError("it knows no Flower")
        self.bundle, self.is_next_waiting = "", is_next_waiting

    def run(self, arguments, restart, pulled) -> None:
        bundle, _, what = (pulled.decode() or arguments[arguments.index("--token") + 1]).partition(":")
        if self.bundle not in ("", bundle):
            restart(f"{bundle}:{what}".encode())
        self.bundle = bundle
        note(f"begin {what}")
        print(f"{os.getpid()} {bundle} {Path.cwd().name}", flush=True)
        if what == "stop":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
            note("ready")
            time.sleep(20)
        if what == "wait":
            note("ready")
            time.sleep(20)
        if what == "lost":  # as long as nobody else needs this process
            note("ready")
            while not self.is_next_waiting():
                time.sleep(0.01)
            raise ValueError("the next one waits")
        if what.startswith("exit"):
            sys.exit(int(what.removeprefix("exit")))
        if what == "error":
            raise ValueError("of the app")
        time.sleep(0.02)
        note(f"end {what}")


def remove_slowly(folder: Path, ignore_errors: bool = False, remove=shutil.rmtree) -> None:
    """Remove a folder as on a busy disk, its socket first, so that an idle worker sees that one gone."""
    (Path(folder) / "socket").unlink()
    time.sleep(2)
    remove(folder, ignore_errors)


def note(line: str) -> None:
    """Add a line to the log."""
    with open(Path(os.environ["NOTES"]), "a") as log:
        log.write(line + "\n")


if __name__ == "__main__":
    if os.environ.get("SLOW_REMOVAL"):
        shutil.rmtree = remove_slowly
    sys.exit(main(sys.argv[1:], SmallProgram))
