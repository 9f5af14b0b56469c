"""Certificates and keys of a secure federation, looked at before Flower does: its own errors name no file.

Whether a node accepts the server's certificate is asked of TLS itself: a handshake in memory, as a node begins one.
"""

from __future__ import annotations

import datetime
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

from fedsolve.core.errors import InvalidInput
from fedsolve.folders.untrusted import read_bytes

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
        certificate: the server's certificate, signed by it, perhaps through others that follow it in its file.
        address: at which nodes reach the server, with or without a port; None to leave that out.
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
    # Raise `InvalidInput` for a certificate without a name, or for other purposes than a server's.
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
    host, colon, port = address.rpartition(":")
    return (
        host if colon and port.isdecimal() and (":" not in host or host.endswith("]")) else address
    ).strip("[]")


def _check_handshake(ca: Path, certificate: Path, key: Path, host: str | None) -> None:
    # Raise `InvalidInput` unless a node that trusts `ca` accepts the server's certificate, at `host` if given.
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
    # Whether an end's handshake is over, after as much of it as can be done now.
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
