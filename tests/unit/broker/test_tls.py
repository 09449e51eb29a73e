"""Names in certificates, Kafka's rules over them, and files that change."""

import os
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.certificates import certificate

from catchwater.broker.tls import Certificate, NoName, distinguished_name, mapping
from catchwater.config import ConfigError


def subject(*parts: tuple[str, str]) -> dict[str, Any]:
    return {"subject": tuple((part,) for part in parts)}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ((("countryName", "DE"), ("organizationName", "Acme")), "O=Acme,C=DE"),
        ((("commonName", "a,O=Admin"),), r"CN=a\,O\=Admin"),
        ((("commonName", "a\nCN=admin"),), r"CN=a\0ACN\=admin"),
        ((("commonName", 'q"+<>;\\#'),), r"CN=q\"\+\<\>\;\\\#"),
        ((("commonName", " a "),), r"CN=\ a\ "),
        ((("commonName", "ä"),), "CN=ä"),
        ((("emailAddress", "a@b"),), "1.2.840.113549.1.9.1=#1603614062"),
        ((("userId", "u"), ("domainComponent", "d")), "DC=d,UID=u"),
    ],
)  # fmt: skip
def test_a_name_is_written_as_java_writes_it(
    parts: tuple[tuple[str, str], ...], expected: str
) -> None:
    assert distinguished_name(subject(*parts)) == expected


def test_parts_of_one_place_stand_together() -> None:
    both = {"subject": ((("commonName", "a"), ("userId", "b")),)}
    assert distinguished_name(both) == "CN=a+UID=b"


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a", "CN=a"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", "CN=svc,OU=ServiceUsers,O=x", "svc"),
        ("RULE:^CN=(.*?),OU=(.*?),O=(.*?)$/$1@$2/L,DEFAULT", "CN=Adm,OU=Acme,O=x", "adm@acme"),
        ("RULE:^CN=(.*)$/$1/U", "CN=ann", "ANN"),
        ("RULE:^OU=x$/y/, RULE:^.*[Cc][Nn]=([a-z.]*).*$/$1/L, DEFAULT", "O=b,CN=ann.b", "ann.b"),
        (r"RULE:^CN=a\/b$/slash/", "CN=a/b", "slash"),
    ],
)
def test_the_first_rule_that_fits_makes_the_user(rules: str, name: str, expected: str) -> None:
    assert mapping(rules)(name) == expected


def test_nobody_writes_another_s_name_into_a_certificate() -> None:
    """B10: a comma or a newline in a name is none of the separators."""
    rules = mapping("RULE:^CN=([^,]*),O=Acme$/$1/")
    for common in ("admin,O=Acme", "admin\nO=Acme", "x,CN=admin,O=Acme"):
        with pytest.raises(NoName):
            rules(distinguished_name(subject(("organizationName", "Evil"), ("commonName", common))))


@pytest.mark.parametrize("rules", ["RULE:", "RULE:a/b", "RULE:(/x/", "WHAT", "DEFAULT DEFAULT"])
def test_rules_that_cannot_be_read_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.principal\.mapping\.rules"):
        mapping(rules)


def test_without_a_rule_that_fits_nobody_is_named() -> None:
    with pytest.raises(NoName):
        mapping("RULE:^CN=x$/x/")("CN=y")


def test_clients_certificates_are_asked_for_again_when_their_authorities_change(
    tmp_path: Path,
) -> None:
    pem, ca = certificate(tmp_path)
    _, other = certificate(tmp_path, "other")
    used = Certificate(pem, ca, "required")
    assert used.context.verify_mode is ssl.CERT_REQUIRED
    assert used.context.options & ssl.OP_NO_TICKET and used.context.num_tickets == 0
    before = used.context
    used.refresh()
    assert (used.version, used.context) == (0, before)
    whole = ca.read_bytes()
    ca.write_text("no certificate")
    used.refresh()
    assert (used.version, used.context) == (0, before), "a bad file is not used"
    os.replace(other, ca)
    used.refresh()
    assert used.version == 1 and used.context is not before
    assert len(used.context.get_ca_certs()) == 1
    assert whole != ca.read_bytes()


def shakes_hands(server: ssl.SSLContext, authority: Path, pem: Path) -> bool:
    """Whether a client with this certificate is let in."""
    client = ssl.create_default_context(cafile=str(authority))
    client.load_cert_chain(pem)
    pipes = [ssl.MemoryBIO() for _ in range(2)]
    ours = server.wrap_bio(pipes[0], pipes[1], server_side=True)
    theirs = client.wrap_bio(pipes[1], pipes[0], server_hostname="localhost")
    for _ in range(6):
        for side in (theirs, ours):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return False
    return bool(ours.getpeercert())


def test_a_certificate_that_was_revoked_is_refused(tmp_path: Path) -> None:
    pem, ca = certificate(tmp_path)
    client, client_ca, revoke = revocable(tmp_path)
    used = Certificate(pem, client_ca, "required")
    assert shakes_hands(used.context, ca, client)
    revoke(None)
    used.refresh()
    assert shakes_hands(used.context, ca, client), "a list without it"
    revoke(client)
    used.refresh()
    assert used.version == 2 and not shakes_hands(used.context, ca, client)


def revocable(folder: Path) -> tuple[Path, Path, Callable[[Path | None], None]]:
    """A client's certificate, its authority, and what adds a list of revocations to the latter."""
    now = datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clients' authority")])
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]

    def built(common: str, key: Any, is_authority: bool) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
        return (
            x509.CertificateBuilder()
            .subject_name(name if is_authority else subject)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
            .sign(keys[0], hashes.SHA256())
        )

    authority, own = built("authority", keys[0], True), built("client", keys[1], False)
    pem, ca = folder / "revocable.pem", folder / "revocable-ca.pem"
    private = keys[1].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    pem.touch(0o600)
    pem.write_bytes(private + own.public_bytes(serialization.Encoding.PEM))
    text = authority.public_bytes(serialization.Encoding.PEM)
    ca.write_bytes(text)

    def revoke(client: Path | None) -> None:
        made = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(name)
            .last_update(now - timedelta(hours=1))
            .next_update(now + timedelta(days=1))
        )
        if client is not None:
            made = made.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(own.serial_number)
                .revocation_date(now - timedelta(minutes=1))
                .build()
            )
        signed = made.sign(keys[0], hashes.SHA256())
        ca.write_bytes(text + signed.public_bytes(serialization.Encoding.PEM))

    return pem, ca, revoke
