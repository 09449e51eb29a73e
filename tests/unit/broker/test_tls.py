"""Names in certificates, Kafka's rules over them, and files that change."""

import os
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tests.certificates import certificate, revocable

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


@pytest.mark.parametrize("days", [20, 365 * 40])
def test_the_end_of_a_certificate_is_known_and_spoken_of_once_a_day(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, days: int
) -> None:
    """From 2050 on certificates write it in another form (RFC 5280 4.1.2.5)."""
    pem, _ = certificate(tmp_path, lasts=timedelta(days=days))
    used = Certificate(pem)
    ends_s = x509.load_pem_x509_certificate(pem.read_bytes()).not_valid_after_utc.timestamp()
    assert used.ends_s == ends_s
    day_s = 86_400.0
    for left_days, expected in ((14.1, 0), (13.9, 1), (13.5, 0), (12.8, 1), (-1, 1), (-1.5, 0)):
        caplog.clear()
        used.remind(ends_s - left_days * day_s)
        assert len(caplog.records) == expected, left_days
        if expected:
            says = "has ended on" if left_days < 0 else f"in {left_days} days"
            assert str(pem) in caplog.text and says in caplog.text


def test_a_renewed_certificate_ends_later_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pem, _ = certificate(tmp_path)
    used = Certificate(pem)
    before_s, whole = used.ends_s, pem.read_bytes()
    for part in (whole[: len(whole) // 2], whole[:300], b""):
        caplog.clear()
        pem.write_bytes(part)
        used.refresh()
        assert used.ends_s == before_s
        assert "is no good" in caplog.text and "None" not in caplog.text
    (tmp_path / "renewed").mkdir()
    renewed, _ = certificate(tmp_path / "renewed", lasts=timedelta(days=90))
    os.replace(renewed, pem)
    used.refresh()
    assert used.ends_s > before_s + 80 * 86_400


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


def test_a_certificate_that_has_ended_is_refused(tmp_path: Path) -> None:
    """B10."""
    pem, ca = certificate(tmp_path)
    for name, lasts in (("valid", timedelta(days=1)), ("ended", timedelta(minutes=-1))):
        client, client_ca = certificate(tmp_path, name, lasts)
        used = Certificate(pem, client_ca, "required")
        assert shakes_hands(used.context, ca, client) == (name == "valid")


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
