"""Who a client is, its coin, and the one-time keys that it hands out: a pre-key makes the masks of one attempt.

The coin is a random number that a client commits itself to before it sees the others' keys. The identity is an
Ed25519 key in a file of mode 0600, of a node for all experiments. Pre-keys are X25519 keys, each signed with
experiment, client and number, as in Signal's X3DH.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from fedsolve.core.errors import InvalidInput
from fedsolve.deploy.secure.byte_reader import ProtocolError, Reader, number
from fedsolve.deploy.secure.primitives import (
    KEY,
    SIGNATURE,
    check_point,
    check_signature,
    digest,
    new_secret,
    public_key,
    sign,
    verifying_key,
)
from fedsolve.folders.files import write_atomically
from fedsolve.folders.untrusted import read_bytes

_LARGEST = 2**31
_STALE = 16  # pre-keys that are so much older than one in use were sent in orders that never came
BUNDLE = 64
"""Pre-keys of a client that the server has in stock at most."""


def load_or_create_identity(path: Path) -> bytes:
    """The private Ed25519 key in a file, or a new one, written with mode 0600.

    Raises:
        InvalidInput: the file cannot be read or written, or is no key, or others may read it.
    """
    try:
        private = read_bytes(path, KEY)
        if path.stat().st_mode & 0o077:
            raise InvalidInput(f"{path} can be read by others: chmod 600 it, or remove it for a new identity")
    except FileNotFoundError:
        private = new_secret()
        write_atomically(path, private, private=True)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from None
    if len(private) != KEY:
        raise InvalidInput(
            f"{path} has {len(private)} bytes, not {KEY}: restore it, or remove it for a new identity"
        )
    return private


class Owner(NamedTuple):
    """Whose keys these are, bound into every signature of set-up: the experiment's digest, the client, its identity."""

    experiment: bytes
    client: int
    identity: bytes

    @property
    def name(self) -> bytes:
        """What signatures are bound to."""
        return self.experiment + number(self.client, 4)


class PreKey(NamedTuple):
    """A public one-time key of a client, signed by it: 100 bytes."""

    number: int
    public: bytes
    signature: bytes

    @classmethod
    def of(cls, owner: Owner, signing: bytes, index: int, private: bytes) -> PreKey:
        """The pre-key with a private key, signed with the identity's private key."""
        public = public_key(private)
        return cls(index, public, sign(signing, "pre-key", owner.name, number(index, 4), public))

    @classmethod
    def read(cls, reader: Reader) -> PreKey:
        """The next fields of a message; the signature is not checked yet."""
        index = reader.number(4)
        if index > _LARGEST:
            raise ProtocolError(f"pre-key {index} has a number above {_LARGEST}")
        return cls(index, reader.take(KEY), reader.take(SIGNATURE))

    def to_bytes(self) -> bytes:
        """The fields of a message."""
        return number(self.number, 4) + self.public + self.signature

    def check(self, owner: Owner) -> None:
        """Raise `ProtocolError` unless the owner signed it."""
        what = f"pre-key {self.number} of client {owner.client}"
        check_signature(
            owner.identity, self.signature, what, "pre-key", owner.name, number(self.number, 4), self.public
        )


class PrivatePreKeys:
    """A client's own pre-keys that were not used yet, by number; numbers only go up."""

    def __init__(self, following: int = 0, keys: dict[int, bytes] | None = None) -> None:
        self._following, self._keys = following, keys or {}

    def clear(self) -> None:
        """Delete all of them."""
        self._keys.clear()

    def top_up(self, owner: Owner, signing: bytes) -> list[PreKey]:
        """Make new ones until there are 64, and return their public halves."""
        fresh = range(self._following, self._following + BUNDLE - len(self._keys))
        self._keys |= {index: new_secret() for index in fresh}
        self._following = fresh.stop
        return [PreKey.of(owner, signing, index, self._keys[index]) for index in fresh]

    def use(self, index: int, public: bytes) -> bytes:
        """The private half of this one, which is deleted here.

        Raises:
            ProtocolError: it was used before, never made, or its public half is another.
        """
        if index not in self._keys:
            known = "was used before" if index < self._following else "was never made"
            raise ProtocolError(f"pre-key {index} of this client {known}")
        if public_key(self._keys[index]) != public:
            raise ProtocolError(f"pre-key {index} of this client is another key")
        private = self._keys.pop(index)
        for old in [old for old in self._keys if old < index - _STALE]:
            del self._keys[old]
        return private

    def to_bytes(self) -> bytes:
        """All of them, for the client's file."""
        keys = b"".join(number(index, 4) + private for index, private in self._keys.items())
        return number(self._following, 4) + number(len(self._keys), 2) + keys

    @classmethod
    def read(cls, reader: Reader) -> PrivatePreKeys:
        """Those of the client's file."""
        following, count = reader.number(4), reader.number(2)
        pairs = [(reader.number(4), reader.take(KEY)) for _ in range(count)]
        return cls(following, dict(pairs))


def read_bundle(reader: Reader, what: str) -> list[PreKey]:
    """A list of pre-keys with ascending numbers, at most 64."""
    count = reader.number(2)
    if count > BUNDLE:
        raise ProtocolError(f"{what} has {count} pre-keys, more than {BUNDLE}")
    keys = [PreKey.read(reader) for _ in range(count)]
    if any(a.number >= b.number for a, b in pairwise(keys)):
        raise ProtocolError(f"the pre-keys of {what} do not ascend")
    return keys


def bundle_bytes(keys: list[PreKey]) -> bytes:
    """A list of pre-keys as bytes."""
    return number(len(keys), 2) + b"".join(key.to_bytes() for key in keys)


def commitment(experiment: bytes, client: int, coin: bytes) -> bytes:
    """What a client shows of its coin before all keys are known."""
    return digest("coin", experiment, number(client, 4), coin)


class Member(NamedTuple):
    """What a client says of itself for a whole experiment, signed by its identity.

    Attributes:
        client: its number.
        identity: its Ed25519 key.
        share_key: the X25519 key that shares are encrypted to.
        commitment: to its coin.
        signature: of all of it.
    """

    client: int
    identity: bytes
    share_key: bytes
    commitment: bytes
    signature: bytes

    @classmethod
    def of(cls, experiment: bytes, client: int, signing: bytes, share_private: bytes, coin: bytes) -> Member:
        """That of the owner of two private keys and a coin."""
        identity, share_key = verifying_key(signing), public_key(share_private)
        hidden, owner = commitment(experiment, client, coin), Owner(experiment, client, identity)
        return cls(
            client, identity, share_key, hidden,
            sign(signing, "member", owner.name, identity, share_key, hidden),
        )  # fmt: skip

    @classmethod
    def read(cls, reader: Reader) -> Member:
        """The next fields of a message; the signature is not checked yet."""
        client, keys = reader.number(4), [reader.take(KEY) for _ in range(3)]
        return cls(client, keys[0], keys[1], keys[2], reader.take(SIGNATURE))

    def to_bytes(self) -> bytes:
        """The fields of a message."""
        return number(self.client, 4) + self.identity + self.share_key + self.commitment + self.signature

    def owner(self, experiment: bytes) -> Owner:
        """Whose pre-keys these keys vouch for."""
        return Owner(experiment, self.client, self.identity)

    def check(self, experiment: bytes) -> None:
        """Raise `ProtocolError` unless the owner of the identity signed it, and its share key can be used."""
        what = f"the share key of client {self.client}"
        check_point(self.share_key, what)
        signed = self.owner(experiment).name, self.identity, self.share_key, self.commitment
        check_signature(self.identity, self.signature, what, "member", *signed)


_HELLO = b"fsh2"


def hello_bytes(experiment: bytes, member: Member, keys: list[PreKey]) -> bytes:
    """The first message of a client: its long-lived keys and its pre-keys in stock."""
    return _HELLO + experiment + member.to_bytes() + bundle_bytes(keys)


def read_hello(hello: bytes) -> tuple[bytes, Member, list[PreKey]]:
    """The experiment's digest, the client's long-lived keys, whose signature is checked, and its pre-keys.

    Raises:
        ProtocolError: it is cut, too long or forged.
    """
    reader = Reader(hello, _HELLO, "a hello")
    experiment, member = reader.take(KEY), Member.read(reader)
    keys = read_bundle(reader, f"the hello of client {member.client}")
    reader.end()
    member.check(experiment)
    return experiment, member, keys
