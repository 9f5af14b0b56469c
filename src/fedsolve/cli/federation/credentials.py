"""Certificates and keys of a secure federation, looked at before Flower does: its own errors name no file."""

from __future__ import annotations

import datetime
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

from fedsolve.core.errors import InvalidInput


def check_credentials(
    ca: Path, certificate: Path | None = None, key: Path | None = None, node_keys: Sequence[Path] = ()
) -> None:
    """Look at the files that a secure federation is started with.

    Args:
        ca: the authority's certificate.
        certificate: the server's certificate, signed by it.
        key: the server's private key.
        node_keys: private keys of nodes, on a NIST curve.

    Raises:
        InvalidInput: a file that is missing or is not what it should be, a private key that others can read, a
            certificate that has ended, is not of this authority or does not fit its key.
    """
    authority = _certificate("--ca", ca)
    if certificate is not None:
        signed = _certificate("--certificate", certificate)
        try:
            signed.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            raise InvalidInput(
                f"--certificate {certificate} is not signed by {ca}: sign it, or give its CA"
            ) from None
        if key is not None and _public(signed) != _public(_private("--key", key)):
            raise InvalidInput(f"--key {key} does not belong to {certificate}: give the key it was made with")
    elif key is not None:
        _private("--key", key)
    for path in node_keys:
        if not isinstance(_private("--node-key", path), EllipticCurvePrivateKey):
            raise InvalidInput(
                f"--node-key {path} is on no NIST curve: ssh-keygen -t ecdsa -b 384 -N '' -f {path}"
            )


def _read(option: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{option} {path}: {error.strerror}") from None


def _certificate(option: str, path: Path) -> x509.Certificate:
    data = _read(option, path)
    try:
        parsed = x509.load_pem_x509_certificate(data)
    except ValueError:
        raise InvalidInput(f"{option} {path} is not a certificate in PEM") from None
    now = datetime.datetime.now(datetime.UTC)
    if not parsed.not_valid_before_utc <= now <= parsed.not_valid_after_utc:
        raise InvalidInput(
            f"{option} {path} is valid from {parsed.not_valid_before_utc:%Y-%m-%d} to "
            f"{parsed.not_valid_after_utc:%Y-%m-%d}, not now: make a new one"
        )
    return parsed


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
