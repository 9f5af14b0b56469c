"""The primitives of a secure sum, all from the package `cryptography`, each with the protocol's own labels.

X25519 (RFC 7748) agrees on keys, Ed25519 (RFC 8032) signs, HKDF with SHA-256 (RFC 5869) derives keys, AES-256 in
counter mode (NIST SP 800-38A) expands a key into a mask, AES-256-GCM (NIST SP 800-38D) encrypts shares.
"""

from __future__ import annotations

import hashlib
import secrets

import numpy as np

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.secure.byte_reader import ProtocolError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise InvalidInput(
        "secure sums need the package cryptography: pip install 'fedsolve[flower]', or cryptography alone"
    ) from None

KEY = 32
"""Bytes of every key, private or public, and of every secret."""
SIGNATURE = 64
TAG = 16
"""Bytes of the digest of a secret."""
SEAL = 12 + 16
"""Bytes of the nonce and the tag of AES-GCM."""
_ANY = bytes(KEY)
"""Some private key: with every one a point of small order gives 0."""
_Bytes = bytes | bytearray | memoryview
_PREFIX = b"fedsolve secure sum 1: "


def _labelled(label: str, parts: tuple[bytes, ...]) -> bytes:
    """A label and parts of fixed lengths: different labels or parts never give the same bytes."""
    return _PREFIX + label.encode() + b"\0" + b"".join(parts)


def new_secret() -> bytes:
    """32 bytes from the system's cryptographic generator; also a private key of X25519 or Ed25519."""
    return secrets.token_bytes(KEY)


def digest(label: str, *parts: bytes) -> bytes:
    """SHA-256 of a label and parts: 32 bytes."""
    return hashlib.sha256(_labelled(label, parts)).digest()


def digests(label: str, parts: tuple[bytes, ...], pieces: bytes, length: int) -> list[bytes]:
    """The digests of a label and parts with each piece of so many bytes as the last part."""
    begun, found = hashlib.sha256(_labelled(label, parts)), []
    for at in range(0, len(pieces), length):
        whole = begun.copy()
        whole.update(pieces[at : at + length])
        found.append(whole.digest())
    return found


def agreement_key(private: bytes) -> X25519PrivateKey:
    """A private key of X25519 for several `agree`: to read one takes as long as to use it."""
    return X25519PrivateKey.from_private_bytes(private)


def public_key(private: bytes) -> bytes:
    """The public key of a private key of X25519."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes | X25519PrivateKey, public: bytes) -> bytes:
    """X25519: the secret that two clients share.

    Raises:
        ProtocolError: the public key is one of the few with which every private key gives 0.
    """
    key = agreement_key(private) if isinstance(private, bytes) else private
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError(f"a public key of X25519 is no usable point: {public.hex()}") from None


def check_point(public: bytes, what: str) -> None:
    """Raise `ProtocolError`, calling it `what`, if a public key of X25519 is one that nobody can use.

    Whoever hands out such a key would make those fail that use it.
    """
    try:
        agree(_ANY, public)
    except ProtocolError as error:
        raise ProtocolError(f"{what}: {error}") from None


def verifying_key(private: bytes) -> bytes:
    """The public key of a private key of Ed25519."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, label: str, *parts: bytes) -> bytes:
    """The Ed25519 signature of a label and parts: 64 bytes."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(_labelled(label, parts))


def check_signature(public: bytes, signature: bytes, what: str, label: str, *parts: bytes) -> None:
    """Raise `ProtocolError`, calling it `what`, unless the owner of a key signed this label and these parts."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _labelled(label, parts))
    except (InvalidSignature, ValueError):
        raise ProtocolError(
            f"{what} has a wrong signature: it is forged, damaged or of another message"
        ) from None


def derive(secret: bytes, label: str, *parts: bytes) -> bytes:
    """HKDF-SHA-256 without salt: 32 bytes for this label and these parts alone."""
    return HKDF(hashes.SHA256(), KEY, None, _labelled(label, parts)).derive(secret)


def seal(key: bytes, plaintext: bytes, associated: _Bytes) -> bytes:
    """AES-256-GCM: a nonce, the encrypted text and the tag, 28 bytes longer than the plaintext.

    A key seals one message; the nonce is random all the same, lest a node restored from a snapshot seals another.
    """
    nonce = secrets.token_bytes(12)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, associated)


def unseal(key: bytes, sealed: bytes, associated: _Bytes) -> bytes | None:
    """The plaintext; None if a byte of it, or of what is associated, is not what was sealed."""
    try:
        return AESGCM(key).decrypt(sealed[:12], sealed[12:], associated)
    except (InvalidTag, ValueError):  # the latter for a nonce that is cut
        return None


class MaskStream:
    """Adds masks onto words: AES-256-CTR of zeros, in pieces that stay in the processor's cache.

    One object has its buffers for itself: use it in one thread.
    """

    _BYTES = 2**17

    def __init__(self) -> None:
        self._zeros = memoryview(bytes(self._BYTES))
        self._stream = np.empty(self._BYTES + 15, np.uint8)  # update_into asks for a block more

    def add(self, parts: tuple[np.ndarray, ...], key: bytes, sign: int) -> None:
        """Add (sign = 1) or subtract (-1) in place, modulo 2^32 or 2^64: one stream over all parts in their order."""
        encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        change = np.add if sign > 0 else np.subtract
        for words in parts:
            step = self._BYTES // words.itemsize
            for start in range(0, len(words), step):
                piece = words[start : start + step]
                encryptor.update_into(self._zeros[: piece.nbytes], self._stream)  # pyright: ignore[reportArgumentType]
                change(piece, self._stream[: piece.nbytes].view(piece.dtype), out=piece)
