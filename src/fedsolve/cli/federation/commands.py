"""The sub-commands of `fedsolve federate`; each imports what it needs, and Flower's version is looked at first."""

from __future__ import annotations

import datetime
import ssl
import stat
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID

from fedsolve.cli.configuration import typed as arg
from fedsolve.cli.console import App, emit, emit_json, emit_table
from fedsolve.cli.federation.jobs import evaluate, statistics
from fedsolve.cli.federation.new import new
from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.run_log import FAILED, read_reason
from fedsolve.deploy.site_names import numbered
from fedsolve.deploy.status import STATUS, ClientStatus, FederationStatus, read_status
from fedsolve.folders.files import held
from fedsolve.folders.untrusted import read_bytes
from fedsolve.report.style import human_time
from fedsolve.results.record_files import HISTORY

federate = App(
    no_args_is_help=True,
    help="Real federations on Flower: write an app, start its nodes, monitor its clients, evaluate models.",
)
federate.command(short_help="Write a small Flower app.")(new)
federate.command(short_help="Evaluate a saved model on the clients.")(evaluate)
federate.command(short_help="Statistics of the clients' columns, from sums.")(statistics)


@federate.command(short_help="Train on a real federation on this machine.")
def demo(
    rounds: Annotated[
        int, typer.Option(help="Number of rounds of each method (default: 4).", show_default=False)
    ] = 4,
    out: arg.Out = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the SuperLink (default: a free one).")
    ] = None,
    as_json: arg.AsJson = False,
) -> None:
    """Train two methods on a SuperLink and three SuperNodes with PyTorch clients, all on this machine."""
    from fedsolve.deploy.flower import check_flower

    if rounds < 1:
        raise InvalidInput(f"--rounds {rounds} must be at least 1")
    check_flower()
    from fedsolve.cli.federation.demo import demo_command

    demo_command(rounds, out, port, as_json)


@federate.command(short_help="Show the clients of a federation.")
def status(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of a run, or of `fedsolve federate demo`.")
    ],
    as_json: arg.AsJson = False,
) -> None:
    """Show when each client was last heard, how often it failed and why, and its versions, during a run or after it."""

    status_command(folder, as_json)


@federate.command(short_help="Check certificates and keys.")
def check(
    ca: Annotated[Path, typer.Option(help="Certificate of the certificate authority.")],
    certificate: Annotated[Path | None, typer.Option(help="The server's certificate.")] = None,
    key: Annotated[Path | None, typer.Option(help="The server's private key.")] = None,
    node_key: Annotated[list[Path] | None, typer.Option(help="Private key of a node. Repeatable.")] = None,
    address: Annotated[
        str | None, typer.Option(help="Where nodes reach the server, such as fl.example.org:8000.")
    ] = None,
) -> None:
    """Check the files of a secure federation: only you can read the keys, and nodes accept the certificate."""
    from fedsolve.deploy.flower import check_flower

    check_flower()

    check_credentials(ca, certificate, key, node_key or [], address)
    emit("certificates and keys are fine")


@federate.command(
    short_help="Start a node whose client app stays loaded between messages.",
    context_settings={"ignore_unknown_options": True},
)
def node(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[OPTIONS OF flower-supernode]", show_default=False)
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run each message in a process of its own, as Flower does.")
    ] = False,
    worker_messages: Annotated[
        int,
        typer.Option(
            min=0,
            help="Replace the worker after this number of messages (default: never).",
            show_default=False,
        ),
    ] = 0,
    worker_megabytes: Annotated[
        int,
        typer.Option(
            min=0, help="Replace the worker when it uses more memory (default: never).", show_default=False
        ),
    ] = 0,
) -> None:
    """Start flower-supernode, and a persistent worker that runs its messages; all other options are flower-supernode's.

    The worker imports the client app once and runs one message after another. This works for every Flower client app.
    """
    from fedsolve.cli.federation.node import node_command
    from fedsolve.deploy.persistent.node_folder import WorkerLimits

    node_command(arguments or [], WorkerLimits(worker_messages, worker_megabytes), fresh)


# Certificates and keys of a secure federation, looked at before Flower does: its own errors name no file.
#
# Whether a node accepts the server's certificate is asked of TLS itself: a handshake in memory, as a node begins one.


_LARGEST = 2**24  # bytes of a file of keys or certificates
_OTHER_NAME = (62, 64)
"""How OpenSSL numbers that a certificate has another name, or another IP address."""


def check_credentials(
    ca: Path,
    certificate: Path | None = None,
    key: Path | None = None,
    node_keys: Sequence[Path] = (),
    address: str | None = None,
) -> None:
    """Look at the files that a secure federation is started with.

    Args:
        ca: the authority's certificate.
        certificate: the server's certificate, signed by it, perhaps through others that follow it in its file.
        key: the server's private key.
        node_keys: private keys of nodes, on a NIST curve.
        address: at which nodes reach the server, with or without a port; None to leave that out.

    Raises:
        InvalidInput: a file that is missing or is not what it should be, a private key that others can read, a
            certificate that no node accepts (its dates, names, purpose or signatures) or that does not fit its key,
            an address without the server's certificate and key.
    """
    authorities = _certificates("--ca", ca)
    if address is not None and (certificate is None or key is None):
        raise InvalidInput(
            f"--address {address} is compared in a handshake: give --certificate and --key, too"
        )
    if certificate is not None:
        signed, *others = _certificates("--certificate", certificate)
        if not any(_is_signed_by(signed, signer) for signer in (*others, *authorities)):
            raise InvalidInput(f"--certificate {certificate} is not signed by {ca}: sign it, or give its CA")
        _check_for_servers(certificate, signed)
        if key is not None:
            if _public(signed) != _public(_private("--key", key)):
                raise InvalidInput(
                    f"--key {key} does not belong to {certificate}: give the key it was made with"
                )
            _check_handshake(ca, certificate, key, None if address is None else _host(address))
    elif key is not None:
        _private("--key", key)
    for path in node_keys:
        if not isinstance(_private("--node-key", path), EllipticCurvePrivateKey):
            raise InvalidInput(
                f"--node-key {path} is on no NIST curve: ssh-keygen -t ecdsa -b 384 -N '' -f {path}"
            )


def _read(option: str, path: Path) -> bytes:
    try:
        return read_bytes(path, _LARGEST)
    except OSError as error:
        raise InvalidInput(f"{option} {path}: {error.strerror}") from None


def _certificates(option: str, path: Path) -> list[x509.Certificate]:
    """All certificates in a file, each valid now."""
    data = _read(option, path)
    try:
        parsed = x509.load_pem_x509_certificates(data)
    except ValueError:
        raise InvalidInput(f"{option} {path} is not a certificate in PEM") from None
    now = datetime.datetime.now(datetime.UTC)
    for number, one in enumerate(parsed, 1):
        if not one.not_valid_before_utc <= now <= one.not_valid_after_utc:
            which = f" ({number} of {len(parsed)})" if len(parsed) > 1 else ""
            raise InvalidInput(
                f"{option} {path}{which} is valid from {one.not_valid_before_utc:%Y-%m-%d} to "
                f"{one.not_valid_after_utc:%Y-%m-%d}, not now: make a new one"
            )
    return parsed


def _is_signed_by(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _check_for_servers(path: Path, certificate: x509.Certificate) -> None:
    """Raise `InvalidInput` for a certificate without a name, or for other purposes than a server's."""
    extensions = certificate.extensions
    if not any(isinstance(extension.value, x509.SubjectAlternativeName) for extension in extensions):
        raise InvalidInput(
            f"--certificate {path} names no address (subjectAltName), and nodes look at no other name: make one with "
            "the address that they dial"
        )
    purposes = [e.value for e in extensions if isinstance(e.value, x509.ExtendedKeyUsage)]
    allowed = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)
    if purposes and not any(purpose in purposes[0] for purpose in allowed):
        raise InvalidInput(
            f"--certificate {path} is not for servers: make one with extendedKeyUsage = serverAuth, or without it"
        )


def _host(address: str) -> str:
    """The name or IP address in an address with or without a port."""
    host, colon, port = address.rpartition(":")
    return (
        host if colon and port.isdecimal() and (":" not in host or host.endswith("]")) else address
    ).strip("[]")


def _check_handshake(ca: Path, certificate: Path, key: Path, host: str | None) -> None:
    """Raise `InvalidInput` unless a node that trusts `ca` accepts the server's certificate, at `host` if given."""
    try:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(certificate, key)
        node = ssl.create_default_context(cafile=str(ca))  # as Flower's client makes its own
        node.check_hostname = host is not None
        to_node, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
        waiting = [
            node.wrap_bio(to_node, to_server, server_hostname=host),
            server.wrap_bio(to_server, to_node, server_side=True),
        ]
        while waiting:
            waiting = [end for end in waiting if not _is_done(end)]
    except ssl.SSLCertVerificationError as error:
        if error.verify_code in _OTHER_NAME:
            raise InvalidInput(
                f"--certificate {certificate} does not name {host} (subjectAltName), which nodes dial: make one that "
                "does, or have them dial a name that it has"
            ) from None
        raise InvalidInput(
            f"--certificate {certificate} is refused by nodes that trust {ca} ({error.verify_message}): make a new one"
        ) from None
    except (ssl.SSLError, ValueError, UnicodeError) as error:
        reason = getattr(error, "reason", None) or error
        raise InvalidInput(f"--certificate {certificate} cannot be used ({reason}): make a new one") from None


def _is_done(end: ssl.SSLObject) -> bool:
    """Whether an end's handshake is over, after as much of it as can be done now."""
    try:
        end.do_handshake()
    except ssl.SSLWantReadError:
        return False
    return True


def _private(option: str, path: Path) -> Any:
    data = _read(option, path)
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise InvalidInput(f"{option} {path} can be read by others: chmod 600 {path}")
    load = load_ssh_private_key if b"OPENSSH" in data else load_pem_private_key
    try:
        return load(data, password=None)
    except (ValueError, TypeError):
        raise InvalidInput(f"{option} {path} is not a private key without a password") from None


def _public(holder: Any) -> bytes:
    return holder.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


# `fedsolve federate status`: the clients of a federation, by what the server wrote down of them.


_HEADS = ("client", "site", "connected", "last heard", "failures", "in a row", "last used round", "fedsolve", "Flower",
          "Python", "framework")  # fmt: skip
_NAMES = ("fedsolve", "flwr", "python", "framework")


def status_command(folder: Path, as_json: bool) -> None:
    """Print the status of the clients of a run, or of all runs in a folder.

    Raises:
        InvalidInput: there is none, or one is damaged.
    """
    runs = list(_runs(folder))
    if as_json:
        emit_json({"folder": str(folder), "runs": [run.document() for run in runs]})
        return
    for number, run in enumerate(runs):
        if number:
            emit("")
        _print(run)


class _Run(NamedTuple):
    """A run's folder, how the run stands, why it failed ('' if it did not), and its clients."""

    folder: Path
    state: str
    error: str
    clients: FederationStatus

    def document(self) -> dict[str, Any]:
        """All of it as plain data."""
        about = {"folder": str(self.folder), "status": self.state, "error": self.error or None}
        return about | self.clients.model_dump(mode="json")


def _runs(folder: Path) -> Iterator[_Run]:
    """The run of a folder, or those of the folders in it.

    Raises:
        InvalidInput: there is none, or a status is damaged.
    """
    found = [folder / STATUS] if (folder / STATUS).exists() else sorted(folder.glob(f"*/{STATUS}"))
    if not found:
        raise InvalidInput(
            f"{folder} holds no run of a federation: no {STATUS} is in it or in a folder of it"
        )
    for path in found:
        clients = read_status(path)
        state, error = _state(path.parent, clients)
        yield _Run(path.parent, state, error, clients)


def _state(folder: Path, clients: FederationStatus) -> tuple[str, str]:
    """How a run stands, and why it failed."""
    if held(folder):
        return "running", ""
    if (folder / FAILED).exists():
        return "failed", read_reason(folder)
    history = folder / HISTORY  # of a run that went on and was interrupted it is older than the status
    is_newest = history.exists() and history.stat().st_mtime >= (folder / STATUS).stat().st_mtime
    return ("finished" if is_newest or clients.round >= clients.rounds > 0 else "interrupted"), ""


def _print(run: _Run) -> None:
    known = run.clients
    connected = sum(one.connected for one in known.clients)
    error = f" ({run.error})" if run.error else ""
    emit(
        f"{known.label} in {run.folder}: {run.state}{error}, {known.round} of {known.rounds} rounds, "
        f"{connected} of {len(known.clients)} clients connected"
    )
    emit_table(_HEADS, [_row(one) for one in known.clients], len(_HEADS))
    for one in known.clients:
        if one.last_cause is not None:
            emit(f"last failure of {one.site or numbered(one.client)}: {one.last_reason}")
    for reason in known.refused:
        emit(f"refused: {reason}")
    emit(
        "each client keeps a state: that after its last used round"
        if known.keeps_states
        else "clients keep no state between rounds"
    )


def _row(one: ClientStatus) -> tuple[str, ...]:
    heard = "never" if one.last_heard is None else f"{human_time(max(time.time() - one.last_heard, 0))} ago"
    counts = map(str, (one.failures, one.consecutive_failures, one.last_used_round or "none"))
    versions = (one.versions.get(name, "") for name in _NAMES)
    return (str(one.client), one.site, "yes" if one.connected else "no", heard, *counts, *versions)
