"""What others send, before it reaches a log: one line, no control characters, cut; and failures to read it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from fedsolve.core.errors import FedsolveError, InvalidInput

_LONGEST = 300
# from the slash that begins a path to the last one before a mark, since folders may have spaces in their names
_BEGINS = r"""(?:(?<=^)|(?<=[\s'"(=\[{<>|`,“‘«])|(?<=:)(?!//))"""
_FOLDERS = re.compile(_BEGINS + r"""(?:file://|~\w*|\.{1,2}|[A-Za-z]:)?[/\\](?=\S)(?:[^'"():,;]*[/\\])?""")


def sanitize(text: object, longest: int = _LONGEST) -> str:
    r"""What somebody else wrote, as one line of printable characters.

    >>> sanitize("disk full\n\x1b[2Jfedsolve: all is well")
    'disk full \\x1b[2Jfedsolve: all is well'
    """
    line = " ".join(str(text)[: 4 * longest].split())
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    return line if len(line) <= longest else f"{line[:longest]}..."


def without_folders(text: str, folder: str = "") -> str:
    """Words without the folders of the machine that they were written on: of a path its last name.

    Args:
        text: the words.
        folder: one that they may name in any form, such as a relative one.

    >>> without_folders("the checkpoint /home/ann/my state/ledger.safetensors is corrupt, 1 / n of it")
    'the checkpoint ledger.safetensors is corrupt, 1 / n of it'
    >>> without_folders("cannot read state/client-1/reply.bin", folder="state")
    'cannot read reply.bin'
    """
    if folder:
        text = re.sub(rf"{re.escape(folder.rstrip('/'))}/(?:[^\s'\"():,;]*/)?", "", text)
    return _FOLDERS.sub("", text)


@contextlib.contextmanager
def about_request() -> Iterator[None]:
    """Within it, errors follow from the request and the model's shapes, not from data: they may be told as they are."""
    try:
        yield
    except FedsolveError as error:
        error.about_request = True
        raise


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Within it, whatever goes wrong in reading what comes from outside becomes `InvalidInput`: no run ends by it."""
    try:
        yield
    except InvalidInput:
        raise
    except Exception as error:  # its words may quote what was sent: its type is enough
        raise InvalidInput(
            f"{what} cannot be read ({type(error).__name__}): another version of fedsolve?"
        ) from error
