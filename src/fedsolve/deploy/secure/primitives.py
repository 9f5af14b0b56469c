"""What secure sums are made of: primitives of `cryptography`, Shamir's sharing, messages as bytes, random noise.

X25519 (RFC 7748) agrees on keys, Ed25519 (RFC 8032) signs, HKDF with SHA-256 (RFC 5869) derives keys, AES-256 in
counter mode (NIST SP 800-38A) expands a key into a mask, AES-256-GCM (NIST SP 800-38D) encrypts shares.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from scipy.special import gammaln

from fedsolve.core.errors import FedsolveError, InvalidInput, of_type
from fedsolve.deploy.secret_keys import new_secret

# Shamir's secret sharing (1979), of many secrets at once: any `threshold` points of a polynomial give its value at 0.
#
# A secret of 32 bytes is 18 numbers of 15 bits, each the value at 0 of a polynomial of its own over the integers
# modulo a prime just above 2^15. So sharing is one product of matrices.

PRIME = 32771
"""The smallest prime above 2^15: a value fits into two bytes."""
LIMBS, _BITS = 18, 15
SHARE = 2 * LIMBS
"""Bytes of a share."""
_SECRET = 32
_FAIR = 2**32 // PRIME * PRIME


def share(values: bytes, threshold: int, count: int) -> list[bytes]:
    """For each of the points 1, ..., count its shares of secrets (32 bytes each), 36 bytes each."""
    constants = _to_limbs(values)
    # Column j is the polynomial of limb j: its value at 0, then uniform coefficients.
    coefficients = np.vstack(
        [constants, _uniform((threshold - 1) * len(constants)).reshape(threshold - 1, -1)]
    )
    # Products are below 2^31, and there are at most 64 of them: int64 is exact.
    shares = (_powers(threshold, count) @ coefficients) % PRIME
    return [row.tobytes() for row in shares.astype("<u2")]


def combine(points: Sequence[int], shares: Sequence[bytes]) -> bytes:
    """The secrets, 32 bytes each, from the shares that these points have of them."""
    # Shares of no such polynomials give some other secrets.
    # Lagrange's interpolation at 0, of all limbs of all secrets at once.
    values = np.stack([np.frombuffer(row, "<u2") for row in shares]).astype(np.int64)
    return _from_limbs((np.array(weights(points), np.int64) @ (values % PRIME)) % PRIME)


@lru_cache(maxsize=64)
def weights(points: Sequence[int], prime: int = PRIME) -> list[int]:
    """Lagrange's weights: the value at 0 is the sum of weights times shares at these points."""
    found = []
    for x in points:
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * -other % prime, below * (x - other) % prime
        found.append(above * pow(below, -1, prime) % prime)
    return found


@lru_cache(maxsize=8)
def _powers(threshold: int, count: int) -> np.ndarray:
    # x^k modulo the prime for the points x = 1, ..., count and k below the threshold.
    return np.array([[pow(x, k, PRIME) for k in range(threshold)] for x in range(1, count + 1)], np.int64)


def _uniform(count: int) -> np.ndarray:
    # Numbers below the prime, each as likely as any other.
    found = np.empty(0, np.uint32)
    while len(found) < count:
        # Rejection: remainders of all 32-bit numbers would favour the small ones.
        drawn = np.frombuffer(secrets.token_bytes(4 * (count + 16)), "<u4")
        found = np.append(found, drawn[drawn < _FAIR])
    return (found[:count] % PRIME).astype(np.int64)


def _to_limbs(values: bytes) -> np.ndarray:
    # Secrets as numbers of 15 bits, one after the other.
    bits = np.unpackbits(np.frombuffer(values, np.uint8).reshape(-1, _SECRET), axis=1, bitorder="little")
    padded = np.pad(bits, ((0, 0), (0, LIMBS * _BITS - bits.shape[1])))
    return (padded.reshape(-1, _BITS) @ (1 << np.arange(_BITS))).ravel()


def _from_limbs(numbers: np.ndarray) -> bytes:
    bits = (numbers[:, None] >> np.arange(_BITS)) & 1
    whole = bits.astype(np.uint8).reshape(-1, LIMBS * _BITS)[:, : 8 * _SECRET]
    return np.packbits(whole, axis=1, bitorder="little").tobytes()


# How messages are laid out as bytes, and the two errors of the protocol.
#
# Every message begins with four bytes that name its kind and version. All numbers are unsigned and little-endian,
# every field has a fixed length or a count before it, and nothing may follow the last field.

LARGEST_LIST = 2**16
"""Clients that a list may have: sums of 16-bit limbs hold for so many."""


class ProtocolError(InvalidInput):
    """A message, key or request of a secure sum is refused: nothing was sent, added or answered."""


class SumNotOpened(FedsolveError):
    """A sum stays closed: too few clients or members of the committee answered, or what they sent does not fit.

    The answers of `missing` would have been needed; those `at_fault` sent what does not fit. Of a member and a client
    in `disputes` one or the other is at fault, and nobody can say which. The owners of `unwilling` allow no sum of so
    few.
    """

    exit_code = 4

    def __init__(
        self,
        message: str,
        missing: Iterable[int] = (),
        at_fault: Iterable[int] = (),
        disputes: Iterable[tuple[int, int]] = (),
        unwilling: Iterable[int] = (),
    ) -> None:
        super().__init__(message)
        self.missing = tuple(missing)
        self.at_fault, self.disputes = tuple(sorted(at_fault)), tuple(disputes)
        self.unwilling = tuple(sorted(unwilling))


class RoundIsOver(SumNotOpened):
    """No sum of this round can be opened any more, or the one that was is none."""


class Reader:
    """Takes the fields of a message, which begins with a tag of four bytes, in order, and never more than there is."""

    def __init__(self, data: bytes, tag: bytes, what: str) -> None:
        if not isinstance(data, bytes):
            raise ProtocolError(f"{what} must be bytes, not {of_type(data)}")
        self._data, self.at, self._what = data, 0, what
        if self.take(len(tag)) != tag:
            raise ProtocolError(f"{what} does not begin with {tag!r}: it is another message, or damaged")

    def take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self._data):
            raise ProtocolError(f"{self._what} has {len(self._data)} bytes and ends too early")
        self.at, part = end, self._data[self.at : end]
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "little")

    def clients(self) -> tuple[int, ...]:
        """A list of clients: how many, then their numbers, ascending."""
        count = self.number(4)
        if count > LARGEST_LIST:
            raise ProtocolError(f"{self._what} lists {count} clients, more than {LARGEST_LIST}")
        listed = struct.unpack(f"<{count}I", self.take(4 * count))
        return check_ascending(listed, f"a list of {self._what}")

    def rest(self) -> memoryview:
        """What is left, without a copy; nothing may follow it."""
        self.at, part = len(self._data), memoryview(self._data)[self.at :]
        return part

    def end(self) -> None:
        if more := len(self._data) - self.at:
            raise ProtocolError(f"{self._what} has {more} bytes after its end")


def check_ascending(clients: Sequence[int], what: str) -> tuple[int, ...]:
    """The numbers as they are; `ProtocolError` unless they ascend, so that none occurs twice."""
    if any(a >= b for a, b in pairwise(clients)):
        raise ProtocolError(f"{what} does not ascend: a client occurs twice, or out of order")
    return tuple(clients)


def number(value: int, size: int) -> bytes:
    return value.to_bytes(size, "little")


def client_list(clients: Sequence[int]) -> bytes:
    return number(len(clients), 4) + struct.pack(f"<{len(clients)}I", *clients)


def names(clients: Iterable[int], shown: int = 10) -> str:
    """Clients for an error's one line.

    >>> names([3, 5])
    '3, 5'
    """
    listed = list(clients)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(map(str, listed[:shown])) + more or "none"


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
    # A label and parts of fixed lengths: different labels or parts never give the same bytes.
    return _PREFIX + label.encode() + b"\0" + b"".join(parts)


def digest(label: str, *parts: bytes) -> bytes:
    return hashlib.sha256(_labelled(label, parts)).digest()


def digests(label: str, parts: tuple[bytes, ...], pieces: bytes, length: int) -> list[bytes]:
    # What all have in common is hashed once.
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
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes | X25519PrivateKey, public: bytes) -> bytes:
    """X25519: the secret that two clients share."""
    key = agreement_key(private) if isinstance(private, bytes) else private
    try:
        return key.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise ProtocolError(f"a public key of X25519 is no usable point: {public.hex()}") from None


def check_point(public: bytes, what: str) -> None:
    """Raise `ProtocolError`, calling it `what`, if a public key of X25519 is one that nobody can use."""
    # Whoever hands out such a key would make those fail that use it.
    try:
        agree(_ANY, public)
    except ProtocolError as error:
        raise ProtocolError(f"{what}: {error}") from None


def verifying_key(private: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, label: str, *parts: bytes) -> bytes:
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
    """AES-256-GCM: a nonce, the encrypted text and the tag, 28 bytes longer than the plaintext."""
    # A key seals one message; the nonce is random all the same, lest a node restored from a snapshot seals another.
    nonce = secrets.token_bytes(12)
    return nonce + AESGCM(key).encrypt(nonce, plaintext, associated)


def unseal(key: bytes, sealed: bytes, associated: _Bytes) -> bytes | None:
    try:
        return AESGCM(key).decrypt(sealed[:12], sealed[12:], associated)
    except (InvalidTag, ValueError):  # the latter for a nonce that is cut
        return None


class MaskStream:
    """Adds masks onto words: AES-256-CTR of zeros, in pieces that stay in the processor's cache."""

    # One object has its buffers for itself: use it in one thread.

    _BYTES = 2**17

    def __init__(self) -> None:
        self._zeros = memoryview(bytes(self._BYTES))
        self._stream = np.empty(self._BYTES + 15, np.uint8)  # update_into asks for a block more

    def add(self, parts: tuple[np.ndarray, ...], key: bytes, sign: int) -> None:
        """Add (sign = 1) or subtract (-1) in place, modulo 2^32 or 2^64: one stream over all parts in their order."""
        # A key expands one mask, so that the counter may begin at 0; zeros encrypt to the key stream.
        encryptor = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        change = np.add if sign > 0 else np.subtract
        for words in parts:
            step = self._BYTES // words.itemsize
            for start in range(0, len(words), step):
                piece = words[start : start + step]
                encryptor.update_into(self._zeros[: piece.nbytes], self._stream)  # pyright: ignore[reportArgumentType]
                change(piece, self._stream[: piece.nbytes].view(piece.dtype), out=piece)


# A client's share of the noise: Skellam numbers whose random bits come from AES in counter mode.
#
# A Skellam number is the difference of two Poisson numbers with the same mean. Poisson numbers with a mean of at least
# 10 are drawn by transformed rejection (Hoermann 1993, "The transformed rejection method for generating Poisson random
# variables", Algorithm PTRS), others by inversion of a table. Both are exact up to the rounding of 64-bit numbers.

_LARGEST = 2.0**50
_TABLE_BELOW, _EXPANDED_FROM = 10.0, 1e6


def skellam_share(count: int, variance: float, key: bytes | None = None) -> np.ndarray:
    """Independent Skellam numbers with mean 0: whole numbers, int64 of shape (count,)."""
    # They follow from a key of 32 bytes in tests, by default from the system's generator.
    if not 0 < variance <= _LARGEST:
        raise InvalidInput(f"variance = {variance!r} of a share of noise must be above 0 and at most 2^50")
    bits = RandomBits(new_secret() if key is None else key)
    return _poisson(count, variance / 2, bits) - _poisson(count, variance / 2, bits)


class RandomBits:
    """A stream of uniform numbers from AES-256 in counter mode with one key."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def uniform(self, count: int) -> np.ndarray:
        words = np.frombuffer(self._stream.update(bytes(8 * count)), "<u8")
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def _poisson(count: int, mean: float, bits: RandomBits) -> np.ndarray:
    if mean < _TABLE_BELOW:
        # By inversion; beyond 200 a mean below 10 has no probability that 64 bits could tell from 0.
        values = np.arange(200)
        table = np.cumsum(np.exp(values * math.log(mean) - mean - gammaln(values + 1)))
        return np.searchsorted(table, bits.uniform(count)).astype(np.int64)
    found = np.empty(count, np.int64)
    missing = np.arange(count)
    while len(missing):
        tried, accepted = _transformed_rejection(len(missing), mean, bits)
        found[missing[accepted]] = tried[accepted]
        missing = missing[~accepted]
    return found


def _transformed_rejection(count: int, mean: float, bits: RandomBits) -> tuple[np.ndarray, np.ndarray]:
    b = 0.931 + 2.53 * math.sqrt(mean)
    a = -0.059 + 0.02483 * b
    u, v = bits.uniform(count) - 0.5, bits.uniform(count)
    side = 0.5 - np.abs(u)
    k = np.floor((2 * a / side + b) * u + mean + 0.43)
    accepted = (side >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    rest = np.flatnonzero(~accepted & (k >= 0) & ~((side < 0.013) & (v > side)))
    height = np.log(v[rest]) + math.log(1.1239 + 1.1328 / (b - 3.4)) - np.log(a / side[rest] ** 2 + b)
    accepted[rest] = height <= _log_probability(k[rest], mean)
    return np.where(accepted, k, 0).astype(np.int64), accepted


def _log_probability(k: np.ndarray, mean: float) -> np.ndarray:
    # log(mean^k exp(-mean) / k!); by Stirling's series where the terms are large and nearly cancel.
    if mean < _EXPANDED_FROM:
        return k * math.log(mean) - mean - gammaln(k + 1)
    k = np.maximum(k, 1.0)
    x = (k - mean) / mean
    return -mean * ((1 + x) * np.log1p(x) - x) - np.log(2 * math.pi * k) / 2 - 1 / (12 * k)
