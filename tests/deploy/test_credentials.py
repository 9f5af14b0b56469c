"""What `fedsolve federate check` says of certificates: what a node that trusts the authority would."""

import datetime
import ipaddress

import pytest

import fedsolve as fs

x509 = pytest.importorskip("cryptography.x509")
from cryptography.hazmat.primitives import hashes  # noqa: E402
from cryptography.hazmat.primitives.asymmetric import ec  # noqa: E402
from cryptography.hazmat.primitives.serialization import (  # noqa: E402
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: E402

from fedsolve.cli.federation.credentials import check_credentials  # noqa: E402

NOW = datetime.datetime.now(datetime.UTC)
DAY = datetime.timedelta(days=1)
SAN = x509.SubjectAlternativeName(
    [
        x509.DNSName("fl.example.org"),
        x509.DNSName("*.sites.org"),
        x509.IPAddress(ipaddress.ip_address("10.0.0.1")),
    ]
)
SERVER = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
CLIENT = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
KEYS = [ec.generate_private_key(ec.SECP256R1()) for _ in range(3)]
ROOT, MIDDLE, LEAF = range(3)
AUTHORITY = (
    x509.BasicConstraints(ca=True, path_length=None),
    x509.KeyUsage(False, False, False, False, False, True, True, False, False),
)
CRITICAL = (x509.BasicConstraints, x509.KeyUsage)


def issue(who, by, *extensions, begin=NOW - DAY, end=NOW + DAY):
    """A certificate of one of the keys, signed by another."""
    names = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"fl-{i}.example.org")]) for i in (who, by)]
    builder = (
        x509.CertificateBuilder(names[1], names[0], KEYS[who].public_key(), 100 + who)
        .not_valid_before(begin)
        .not_valid_after(end)
    )
    # Python 3.13 asks for these
    of, by_whom = (KEYS[i].public_key() for i in (who, by))
    extensions += (x509.SubjectKeyIdentifier.from_public_key(of),)
    extensions += (x509.AuthorityKeyIdentifier.from_issuer_public_key(by_whom),)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=isinstance(extension, CRITICAL))
    return builder.sign(KEYS[by], hashes.SHA256()).public_bytes(Encoding.PEM)


ROOT_PEM = issue(ROOT, ROOT, *AUTHORITY)
MIDDLE_PEM = issue(MIDDLE, ROOT, *AUTHORITY)
GOOD = issue(LEAF, ROOT, SAN, SERVER)
BY_MIDDLE = issue(LEAF, MIDDLE, SAN)

CASES = {
    "right": (ROOT_PEM, GOOD, None, ""),
    "right name": (ROOT_PEM, GOOD, "fl.example.org", ""),
    "right name and port": (ROOT_PEM, GOOD, "fl.example.org:8000", ""),
    "right by a pattern": (ROOT_PEM, GOOD, "north.sites.org:8000", ""),
    "right number": (ROOT_PEM, GOOD, "10.0.0.1:8000", ""),
    "no purpose": (ROOT_PEM, issue(LEAF, ROOT, SAN), None, ""),
    "a chain": (ROOT_PEM, BY_MIDDLE + MIDDLE_PEM, "10.0.0.1", ""),
    "a chain at the node": (ROOT_PEM + MIDDLE_PEM, BY_MIDDLE, None, ""),
    "no name": (ROOT_PEM, issue(LEAF, ROOT), None, "names no address \\(subjectAltName\\)"),
    "other name": (ROOT_PEM, GOOD, "fl-2.example.org:8000", "does not name fl-2.example.org"),
    "other number": (ROOT_PEM, GOOD, "127.0.0.1:8000", "does not name 127.0.0.1"),
    "other number of six": (ROOT_PEM, GOOD, "[::1]:8000", "does not name ::1"),
    "for clients": (ROOT_PEM, issue(LEAF, ROOT, SAN, CLIENT), None, "is not for servers"),
    "half a chain": (ROOT_PEM, BY_MIDDLE, None, "is not signed by"),
    "a chain to nowhere": (
        issue(LEAF, LEAF, *AUTHORITY),
        BY_MIDDLE + MIDDLE_PEM,
        None,
        "is refused by nodes",
    ),
    "by what may not sign": (ROOT_PEM, BY_MIDDLE + issue(MIDDLE, ROOT), None, "is refused by nodes"),
    "ended": (
        ROOT_PEM,
        issue(LEAF, ROOT, SAN, begin=NOW - 3 * DAY, end=NOW - DAY),
        None,
        "not now: make a new",
    ),
    "not yet": (
        ROOT_PEM,
        issue(LEAF, ROOT, SAN, begin=NOW + DAY, end=NOW + 2 * DAY),
        None,
        "not now: make a new",
    ),
    "ended on the way": (
        ROOT_PEM,
        BY_MIDDLE + issue(MIDDLE, ROOT, *AUTHORITY, begin=NOW - 3 * DAY, end=NOW - DAY),
        None,
        r"\(2 of 2\) is valid from",
    ),
    "no address": (ROOT_PEM, GOOD, "a..b", "cannot be used"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_node_would_say(case, tmp_path):
    authority, certificate, address, said = CASES[case]
    files = [tmp_path / name for name in ("ca.crt", "server.pem", "server.key")]
    key = KEYS[LEAF].private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for path, content in zip(files, (authority, certificate, key), strict=True):
        path.write_bytes(content)
        path.chmod(0o600)
    if not said:
        check_credentials(*files, address=address)
        check_credentials(*files[:2])
        return
    with pytest.raises(fs.InvalidInput, match=said) as refused:
        check_credentials(*files, address=address)
    assert "\n" not in str(refused.value)


def test_an_address_needs_the_certificate_and_its_key(tmp_path):
    (tmp_path / "ca.crt").write_bytes(ROOT_PEM)
    with pytest.raises(fs.InvalidInput, match="is compared in a handshake: give --certificate and --key"):
        check_credentials(tmp_path / "ca.crt", address="fl.example.org")
