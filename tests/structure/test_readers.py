"""Files of others are read by `folders/untrusted.py` and `folders/untrusted.py` alone, but for what is listed.

A new call of `open`, `json.loads` and the like fails here: use those functions, or say why it need not.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "src" / "fedsolve"
READERS = {"folders/untrusted.py"}
OPENING = {"os", "io", "gzip", "bz2", "lzma", "tarfile", "codecs"}
"""Modules whose `open` is one; that of a path has a mode, or nothing, in its brackets."""
OF_MODULES = {
    "np": {"load", "fromfile", "memmap", "loadtxt", "genfromtxt", "fromregex"},
    "json": {"load", "loads"},
    "tomllib": {"load", "loads"},
    "csv": {"reader", "DictReader"},
    "torch": {"load"},
    "pickle": {"load", "loads"},
    "zipfile": {"ZipFile"},
    "linecache": {"getlines"},
}
ANYWHERE = {
    "safe_open", "load_file", "ParquetFile", "OSFile", "read_schema", "read_table", "memory_map",
}  # fmt: skip

OWN = "a file of this system or package, which nobody else gave"
PROCESS = "a process of our own wrote it a moment ago, into a folder of its own"
OPENED = "a file that `open_regular` has opened"
PRIVATE = "the folder of a node's worker, which nobody else can open (0700)"
WRITING = "it writes, to a new file"
RING = "opens a secure sum, and no file"
LISTED = {
    "cli/weight_files.py": {"torch.load": "bytes in memory that it has just made"},
    "cli/federation/demo.py": {"open": PROCESS, "json.loads": PROCESS},
    "cli/federation/local.py": {"open": PROCESS, "json.loads": PROCESS, "read_text": PROCESS},
    "cli/federation/node.py": {"open": "whether Flower can open what the user names; nothing is read"},
    "cli/federation/new.py": {"read_text": OWN, "read_bytes": OWN},
    "cli/processes.py": {"open": OWN, "read_text": PROCESS},
    "cli/console.py": {"os.open": OWN},
    "config/catalogue.py": {"read_text": OWN},
    "core/xla/compiler.py": {
        "read_bytes": "the cache of compiled programs, which this user's programs wrote",
        "read_text": OWN,
    },
    "data/grouping.py": {"open": WRITING},
    "data/writing.py": {"np.memmap": "a file that it has just written"},
    "data/tables.py": {
        "OSFile": "Arrow's own reader, of a file that `open_regular` has looked at",
        "ParquetFile": "the same",
        "read_schema": "the same",
    },
    "deploy/oracles/command.py": {"safe_open": "a regular file of bounded size, as `open_regular` has found"},
    "deploy/persistent/node_folder.py": {"os.open": PRIVATE, "open": PRIVATE, "read_bytes": OWN},
    "deploy/persistent/shim.py": {"json.loads": PRIVATE, "os.open": PRIVATE, "open": PRIVATE},
    "deploy/persistent/worker.py": {"json.loads": PRIVATE, "read_text": PRIVATE, "os.open": OWN},
    "deploy/processes.py": {"open": WRITING, "read_text": "the system's table of processes"},
    "deploy/secure/client.py": {"os.open": "a folder, to bring it to the disk"},
    "deploy/server/rounds.py": {"open": RING},
    "deploy/host.py": {"read_bytes": OWN},
    "engine/compute/layout.py": {"json.loads": OWN, "read_text": OWN, "open": OWN},
    "folders/files.py": {"os.open": WRITING, "open": WRITING},
    "folders/sealed.py": {
        "np.memmap": OPENED,
        "open": WRITING,
        "json.loads": "a table of texts alone, as its pattern says, which has no depth",
    },
    "report/markup.py": {"read_text": OWN},
    "results/sweep.py": {"ParquetFile": "bytes in memory, compared with their checksum"},
    "studies/pages.py": {"read_text": OWN, "tomllib.loads": OWN},
    "studies/settings.py": {"read_bytes": OWN, "json.loads": OWN},
    "studies/experiment.py": {"zipfile.ZipFile": OPENED},
    "tasks/datasets/download.py": {"open": "the file that it has fetched"},
    "tasks/datasets/originals.py": {"gzip.open": "bytes in memory", "tarfile.open": OPENED},
    "tasks/ready/digits.py": {"np.loadtxt": OWN},
    "tasks/ready/newsgroups.py": {"load_file": "the weights of an installed package"},
    "tasks/ready/texts.py": {"gzip.open": OPENED},
}  # fmt: skip


def reads(tree: ast.AST) -> Iterator[str]:
    """The calls that read a file or a text of a file's format."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func
        if isinstance(function, ast.Name) and function.id in {"open", *ANYWHERE}:
            yield function.id
        if not isinstance(function, ast.Attribute):
            continue
        of = function.value.id if isinstance(function.value, ast.Name) else ""
        if function.attr in OF_MODULES.get(of, ()) or (function.attr == "open" and of in OPENING):
            yield f"{of}.{function.attr}"
        elif function.attr in ANYWHERE or (
            function.attr in {"read_text", "read_bytes"} and of not in {"untrusted", "sources"}
        ):
            yield function.attr
        elif function.attr == "open":
            mode = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else None
            if isinstance(mode, str) or not call.args:
                yield "open"


def found(text: str) -> set[str]:
    return set(reads(ast.parse(text)))


def test_every_reader_of_files_is_known():
    calls = {}
    for path in sorted(ROOT.rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name not in READERS and (there := found(path.read_text(encoding="utf-8"))):
            calls[name] = there
    assert calls == {name: set(why) for name, why in LISTED.items()}


def test_what_a_reader_is():
    assert found("open(p); p.open('rb'); p.open(); os.open(p, 0); p.read_text()") == {
        "open",
        "os.open",
        "read_text",
    }
    assert found("json.loads(x); tomllib.load(f); np.load(f); csv.reader(f)") == {
        "json.loads", "tomllib.load", "np.load", "csv.reader",
    }  # fmt: skip
    assert (
        found("loads(x); read_bytes(p, 9); open_regular(p); keys.open(attempt); sources.read_bytes(p)")
        == set()
    )
