"""A real federation with TLS and node keys: who is not registered, or does not speak TLS, stays outside."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import real_app
from test_federation import finished, submit, wait

import fedsolve as fs
from fedsolve.cli.federation.credentials import check_credentials
from fedsolve.cli.federation.local import LocalFederation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.alone,
    pytest.mark.full,
    pytest.mark.skipif(
        not (shutil.which("openssl") and shutil.which("ssh-keygen")), reason="needs openssl, ssh-keygen"
    ),
]
EXTENSIONS = """subjectAltName=DNS:localhost,IP:127.0.0.1
basicConstraints=CA:FALSE
keyUsage=digitalSignature,keyEncipherment
extendedKeyUsage=serverAuth
subjectKeyIdentifier=hash
authorityKeyIdentifier=keyid
"""


def openssl(folder: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True)


def authority(folder: Path, name: str) -> Path:
    openssl(
        folder,
        f"req -x509 -newkey rsa:2048 -nodes -sha256 -days 2 -keyout {name}.key -out {name}.crt -subj /CN={name} "
        "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign",
    )
    return folder / f"{name}.crt"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Two authorities, the server's certificate by the first, three node keys."""
    folder = tmp_path_factory.mktemp("tls")
    authority(folder, "ca")
    authority(folder, "other")
    (folder / "ext").write_text(EXTENSIONS)
    openssl(folder, "req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost")
    sign = "-CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -sha256 -extfile ext"
    openssl(folder, f"x509 -req -in server.csr {sign} -out server.pem")
    for node in range(3):
        key = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-C", "", "-f", f"node{node}"]
        subprocess.run(key, cwd=folder, check=True)
    for secret in ("ca.key", "other.key", "server.key"):
        (folder / secret).chmod(0o600)
    return folder


def test_only_those_who_may_take_part(files, tmp_path):
    """Node 0 is registered and trains; an unregistered key, none, a wrong authority and plain HTTP are refused."""
    tls = [
        "--enable-supernode-auth",
        "--ssl-ca-certfile",
        files / "ca.crt",
        "--ssl-certfile",
        files / "server.pem",
    ]
    options = [*map(str, tls), "--ssl-keyfile", str(files / "server.key")]
    app = real_app.write(tmp_path)

    def key(node):
        return lambda client: ["--auth-supernode-private-key", str(files / f"node{node}")]

    federation = LocalFederation(
        tmp_path / "flower", 0, insecure=False, link_options=options, certificate=files / "ca.crt",
        environment={"JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    federation.app = app
    with federation:
        federation.flwr("supernode", "register", str(files / "node0.pub"), "here")
        federation.node_options = key(0)
        federation.start_node(0)
        outsiders = []
        for client, options, certificate, insecure in (
            (1, key(1), "ca.crt", False),
            (2, None, "ca.crt", False),
            (3, key(2), "other.crt", False),
            (4, None, "ca.crt", True),
        ):
            federation.node_options, federation.insecure = options, insecure
            federation.certificate = files / certificate
            outsiders.append((client, federation.start_node(client)))
        out = tmp_path / "run"
        federation.insecure, federation.certificate = False, files / "ca.crt"
        submit(
            federation, out, "FedAvg", 1, population=1, quorum=1, **{"min-replies": 1, "clients-per-round": 1}
        )
        assert wait(federation, out, lambda: finished(out)).total("dropped") == 0
        nodes = json.loads(federation.flwr("supernode", "list", "here", "--format", "json"))["nodes"]
        assert [node["status"] for node in nodes] == ["online"]
        words = {1: "2004", 2: "2001", 3: "certificate"}
        for client, process in outsiders[:3]:  # the fourth, on plain HTTP, tries on and on
            process.wait(60)
            assert process.returncode != 0
            assert words[client] in (federation.folder / f"client-{client}.log").read_text(errors="replace")


def test_what_is_wrong_with_files_is_said(files, tmp_path):
    """Missing, readable by others, not of this authority, not of this key, on the wrong curve, no PEM."""
    check_credentials(files / "ca.crt", files / "server.pem", files / "server.key", [files / "node0"])
    open_key = shutil.copy(files / "server.key", tmp_path / "open.key")
    open_key.chmod(0o644)
    cases = {
        "No such file": (files / "none.crt",),
        "is not a certificate in PEM": (files / "ext",),
        "is not signed by": (files / "other.crt", files / "server.pem"),
        "does not belong to": (files / "ca.crt", files / "server.pem", files / "ca.key"),
        "can be read by others: chmod 600": (files / "ca.crt", files / "server.pem", open_key),
        "is on no NIST curve": (files / "ca.crt", None, None, [files / "server.key"]),
    }
    for said, given in cases.items():
        with pytest.raises(fs.InvalidInput, match=said):
            check_credentials(*given)
