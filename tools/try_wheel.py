"""Install a built wheel in a clean environment of every Python from 3.11 to 3.14 that is here, and use it there.

    python tools/try_wheel.py dist

Outside of the repository and without its environment variables: what the wheel lacks is found missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
COMMANDS = (
    ("--version",),
    ("doctor",),
    ("run", "digits", "FedDuAdam", "--rounds", "2", "--out", "first"),
    ("show", "first"),
    ("federate", "new", "app", "--framework", "jax"),
)
SIZES = Path(__file__).with_name("installed_size.py").resolve()
TYPED = "import fedsolve, pathlib; print((pathlib.Path(fedsolve.__file__).parent / 'py.typed').stat())"


def try_with(python: str, wheel: Path) -> None:
    """Install it with what the commands need, and run them; an error ends the program."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clean = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "FEDSOLVE_", "VIRTUAL_ENV"))
        }

        def call(*words: str | Path) -> None:
            subprocess.run(
                [str(word) for word in words], cwd=folder, env=clean, check=True, stdout=subprocess.DEVNULL
            )

        call(python, "-m", "venv", "env")
        inside = folder / "env" / "bin"
        call(
            inside / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            f"{wheel}[digits,plot]",
        )
        call(inside / "python", "-m", "pip", "check")
        call(inside / "python", "-c", TYPED)
        for words in COMMANDS:
            call(inside / "fedsolve", *words)
        print(f"{python}: installed and used", flush=True)
        subprocess.run([inside / "python", SIZES], cwd=folder, env=clean, check=True)


def main(folder: Path) -> int:
    """Try the one wheel of a folder with every Python that is found."""
    (wheel,) = folder.resolve().glob("*.whl")
    absent = []
    for version in VERSIONS:
        if starts(python := f"python{version}"):
            try_with(python, wheel)
        else:
            absent.append(version)
    if absent == list(VERSIONS):
        try_with(sys.executable, wheel)
    if absent:
        print(f"not tried, since not here: Python {', '.join(absent)}")
    return 0


def starts(python: str) -> bool:
    """Whether there is such a command and it runs: some are only names of what could be installed."""
    return (
        bool(shutil.which(python)) and subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
