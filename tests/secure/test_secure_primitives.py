"""The primitives give the published answers; Shamir's sharing by hand, against linear algebra, and by enumeration."""

import hashlib
import hmac
import itertools
import random

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedsolve.deploy.secure import primitives as p
from fedsolve.deploy.secure import primitives as shamir
from fedsolve.deploy.secure.primitives import ProtocolError

of = bytes.fromhex

SMALL_ORDER = [
    "00" * 32,
    "01" + "00" * 31,
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ec" + "ff" * 30 + "7f",
]
"""The points of order 1, 2, 4 and 8 of the curve, as its public analyses list them."""


@pytest.fixture
def bare(monkeypatch):
    """Without the protocol's labels, which no published example has."""
    monkeypatch.setattr(p, "_labelled", lambda label, parts: b"".join(parts))


def test_x25519_is_that_of_rfc_7748_section_6_1():
    alice = of("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = of("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    assert p.public_key(alice).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert p.agree(alice, p.public_key(bob)).hex() == p.agree(bob, p.public_key(alice)).hex() == shared
    with pytest.raises(ProtocolError, match="no usable point"):
        p.agree(alice, bytes(32))
    p.check_point(p.public_key(bob), "a key")
    for point in SMALL_ORDER:
        with pytest.raises(ProtocolError, match="a key: a public key of X25519 is no usable point"):
            p.check_point(of(point), "a key")


@pytest.mark.parametrize(
    ("private", "public", "message", "signature"),
    [
        (
            "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
            "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
            "",
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0"
            "595bbe24655141438e7a100b",
        ),
        (
            "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
            "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
            "72",
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eae"
            "b4302aeeb00d291612bb0c00",
        ),
    ],
)
def test_ed25519_is_that_of_rfc_8032_section_7_1(bare, private, public, message, signature):
    assert p.verifying_key(of(private)).hex() == public
    assert p.sign(of(private), "", of(message)).hex() == signature
    p.check_signature(of(public), of(signature), "it", "", of(message))
    with pytest.raises(ProtocolError, match="it has a wrong signature"):
        p.check_signature(of(public), of(signature), "it", "", of(message) + b"\0")


def test_hkdf_is_that_of_rfc_5869_without_salt(bare):
    assert (
        p.derive(b"\x0b" * 22, "").hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    )
    extracted = hmac.digest(bytes(32), b"secret", "sha256")
    assert p.derive(b"secret", "", b"a", b"bc") == hmac.digest(extracted, b"abc\1", "sha256")


def test_labels_and_parts_are_bound():
    written = b"fedsolve secure sum 1: reply\0ab"
    assert p.digest("reply", b"a", b"b") == hashlib.sha256(written).digest()
    extracted = hmac.digest(bytes(32), b"secret", "sha256")
    assert p.derive(b"secret", "reply", b"a", b"b") == hmac.digest(extracted, written + b"\1", "sha256")
    key = p.new_secret()
    signature = p.sign(key, "reply", b"a")
    with pytest.raises(ProtocolError):
        p.check_signature(p.verifying_key(key), signature, "it", "answer", b"a")


def test_masks_are_aes_256_in_counter_mode_from_0(monkeypatch):
    """Against the cipher on single blocks, which is that of SP 800-38A, F.1.5; over both arrays and several pieces."""
    key = of("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update
    assert block(of("6bc1bee22e409f96e93d7e117393172a")).hex() == "f3eed1bdb5d2a03c064b5a7e3db181f8"
    monkeypatch.setattr(p.MaskStream, "_BYTES", 32)
    stream = b"".join(block(i.to_bytes(16, "big")) for i in range(9))
    masks = np.frombuffer(stream, "<u4", 17), np.frombuffer(stream, "<u8", 5, 4 * 17)
    start = np.full(17, 2**32 - 1, "<u4"), np.full(5, 2**64 - 1, "<u8")
    sums = tuple(x.copy() for x in start)
    p.MaskStream().add(sums, key, 1)
    for total, mask, word in zip(sums, masks, start, strict=True):
        modulus = 2 ** (8 * word.itemsize)
        assert [int(x) for x in total] == [
            (int(w) + int(m)) % modulus for w, m in zip(word, mask, strict=True)
        ]
    p.MaskStream().add(sums, key, -1)
    assert all(np.array_equal(a, b) for a, b in zip(sums, start, strict=True))


def test_sealing_is_gcm_as_its_authors_tested_it(monkeypatch):
    """Cases 13 and 14 of McGrew and Viega: a key, a nonce and a block of zeros."""
    key = bytes(32)
    assert p.seal(key, b"", b"")[:12] != p.seal(key, b"", b"")[:12]
    monkeypatch.setattr(p.secrets, "token_bytes", bytes)
    assert p.seal(key, b"", b"")[12:].hex() == "530f8afbc74536b9a963b4f1c4cb738b"
    sealed = p.seal(key, bytes(16), b"")
    assert sealed[12:].hex() == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"
    assert p.unseal(bytes(32), sealed, b"") == bytes(16)
    assert p.unseal(bytes(32), sealed, b"x") is None
    assert p.unseal(bytes(32), sealed[:-1] + b"\0", b"") is None
    assert p.unseal(bytes(32), b"short", b"") is None


def test_shares_by_hand(monkeypatch):
    """3 x^2 + 2 x + 5 and 7 x + 9 modulo 32771: values at 1, 2 and 3; Lagrange's weights at 0 are 3, -3 and 1."""
    drawn = np.zeros((2, shamir.LIMBS), np.int64)
    drawn[:, :2] = [[2, 7], [3, 0]]
    monkeypatch.setattr(shamir, "_uniform", lambda count: drawn.ravel())
    secret = (5 | 9 << 15).to_bytes(32, "little")
    rows = [np.frombuffer(row, "<u2") for row in shamir.share(secret, 3, 4)]
    assert [row[:2].tolist() for row in rows] == [[10, 16], [21, 23], [38, 30], [61, 37]]
    assert not np.stack(rows)[:, 2:].any()
    assert shamir.weights((1, 2, 3)) == [3, shamir.PRIME - 3, 1]
    assert shamir.combine((1, 2, 3), [row.tobytes() for row in rows[:3]]) == secret


def test_fewer_shares_than_the_threshold_tell_nothing():
    """Modulo 17: of all polynomials of degree 2, any two points have each pair of values once, whatever the secret."""
    for secret in (0, 5):
        seen = {
            tuple((a * x * x + b * x + secret) % 17 for x in (2, 4))
            for a, b in itertools.product(range(17), repeat=2)
        }
        assert len(seen) == 17**2


def test_coefficients_are_drawn_fairly(monkeypatch):
    """Words beyond the last multiple of the prime are thrown away, and what is left is each number as often."""
    words = [0, 32770, 32771, 2**32 - 1, 2**32 - 1 - 2**32 % shamir.PRIME, 5]
    given = np.array(words * 40, "<u4").tobytes()
    monkeypatch.setattr(shamir.secrets, "token_bytes", lambda size: given[:size])
    assert shamir._uniform(80).astype(int).tolist() == [0, 32770, 0, 32770, 5] * 16
    assert len(shamir._uniform(1000)) == 1000  # of which a sixth is drawn again


def solved(points, values):
    """The value at 0 by Gaussian elimination of the polynomial's equations, in whole numbers."""
    prime = shamir.PRIME
    rows = [[pow(x, k, prime) for k in range(len(points))] + [s] for x, s in zip(points, values, strict=True)]
    for i in range(len(rows)):
        scale = pow(rows[i][i], -1, prime)
        rows[i] = [value * scale % prime for value in rows[i]]
        for j in range(len(rows)):
            if j != i:
                rows[j] = [(b - rows[j][i] * a) % prime for a, b in zip(rows[i], rows[j], strict=True)]
    return rows[0][-1]


@pytest.mark.parametrize(("threshold", "members"), [(3, 3), (7, 10), (43, 64)])
def test_any_threshold_of_shares_gives_the_secrets(threshold, members):
    rng = random.Random(members)
    secrets = bytes(32) + b"\xff" * 32 + rng.randbytes(32)
    rows = shamir.share(secrets, threshold, members)
    assert {len(row) for row in rows} == {3 * shamir.SHARE}
    for _ in range(3):
        points = tuple(rng.sample(range(1, members + 1), threshold))
        assert shamir.combine(points, [rows[x - 1] for x in points]) == secrets
    limbs = [[int(x) for x in np.frombuffer(rows[x - 1], "<u2")[36:39]] for x in points]
    number = int.from_bytes(secrets[64:], "little")
    for i in range(3):
        assert solved(points, [limb[i] for limb in limbs]) == number >> 15 * i & 0x7FFF
    other = shamir.combine(points[1:], [rows[x - 1] for x in points[1:]])
    assert other != secrets


def test_the_field_is_the_smallest_above_15_bits():
    def is_prime(n):
        return all(n % d for d in range(2, 200))

    assert [n for n in range(2**15 + 1, shamir.PRIME + 1) if is_prime(n)] == [shamir.PRIME]
    assert shamir.PRIME < 2**16
    assert shamir.LIMBS * 15 >= 256
    assert 64 * (shamir.PRIME - 1) ** 2 < 2**53  # sums of products are exact
