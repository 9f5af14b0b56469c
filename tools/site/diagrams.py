"""The Mermaid diagrams of docs/ as pictures: each is kept in docs/diagrams under the digest of its text.

python tools/site/diagrams.py MERMAID.JS       # draws those that are not kept

Drawing needs Chromium and the file dist/mermaid.min.js of `npm install mermaid`, the site only what is kept.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"
BLOCK = re.compile(r"```mermaid\n(.*?)```", re.DOTALL)
_PAGE = """<!doctype html><meta charset="utf-8"><script src="{script}"></script><body><script>
mermaid.initialize({{startOnLoad: false, theme: "neutral", htmlLabels: false, fontFamily: "sans-serif"}});
mermaid.render("diagram", {text}).then(found => document.body.innerHTML = found.svg);
</script>"""


def name_of(text: str) -> str:
    """Where the picture of a diagram is kept, below docs/."""
    return f"diagrams/{hashlib.sha256(text.encode()).hexdigest()[:12]}.svg"


def as_pictures(page: str) -> str:
    """A page whose diagrams are the pictures that are kept of them."""
    return BLOCK.sub(lambda block: f"![]({name_of(block[1])})", page)


def draw(script: Path) -> None:
    """Draw the diagrams that are not kept, and drop those that no page has any more."""
    texts = [
        text for page in sorted(DOCS.glob("*.md")) for text in BLOCK.findall(page.read_text(encoding="utf-8"))
    ]
    wanted = {DOCS / name_of(text): text for text in texts}
    for former in set((DOCS / "diagrams").glob("*.svg")) - set(wanted):
        former.unlink()
    browser = shutil.which("chromium") or "google-chrome"
    for path, text in wanted.items():
        if not path.exists():
            with tempfile.TemporaryDirectory() as folder:
                page = Path(folder) / "page.html"
                page.write_text(
                    _PAGE.format(script=script.absolute().as_uri(), text=json.dumps(text)), encoding="utf-8"
                )
                options = (
                    "--headless",
                    "--no-sandbox",
                    "--disable-gpu",
                    "--virtual-time-budget=30000",
                    "--dump-dom",
                )
                command = [browser, *options, f"--user-data-dir={folder}", page.as_uri()]
                shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            path.parent.mkdir(exist_ok=True)
            path.write_text(re.search(r"<svg.*</svg>", shown, re.DOTALL)[0], encoding="utf-8")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
