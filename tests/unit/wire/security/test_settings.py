"""Options on security: by Java's names and by librdkafka's, and what is refused."""

import pickle
from pathlib import Path

import pytest

from catchwater.config import ConfigError
from catchwater.wire.security.settings import UNSECURED, parse_security

LOGIN = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "PLAIN",
    "kafka.sasl.username": "reader",
    "kafka.sasl.password": "s3cret",
}
JAAS = "kafka.sasl.jaas.config"
BY_JAAS = {key: LOGIN[key] for key in ("kafka.security.protocol", "kafka.sasl.mechanism")}
TLS = {"kafka.security.protocol": "SSL"}


def test_nothing_is_secured_unless_it_is_asked_for() -> None:
    assert parse_security({"kafka.bootstrap.servers": "h:1"}) == UNSECURED
    assert not (UNSECURED.tls or UNSECURED.sasl)


@pytest.mark.parametrize(
    ("protocol", "tls", "sasl"),
    [("ssl", True, False), ("SASL_PLAINTEXT", False, True), ("sasl_ssl", True, True)],
)
def test_a_protocol_is_two_choices(protocol: str, tls: bool, sasl: bool) -> None:
    login = LOGIN if sasl else {}
    security = parse_security({**login, "kafka.security.protocol": protocol})
    assert (security.tls, security.sasl) == (tls, sasl)


@pytest.mark.parametrize(
    ("text", "password"),
    [
        ('o.a.k.plain.PlainLoginModule required username="reader" password="s3cret";', "s3cret"),
        ("ScramLoginModule requisite\n username=reader\n password=s3cret ;\n", "s3cret"),
        (
            r'a.ScramLoginModule required password="a\"b\\c;d=e f" username="reader";',
            'a"b\\c;d=e f',
        ),
    ],
)
def test_a_login_in_javas_form(text: str, password: str) -> None:
    security = parse_security({**BY_JAAS, JAAS: text})
    assert (security.username, security.password) == ("reader", password)


def test_the_password_travels_but_is_not_shown() -> None:
    security = parse_security(LOGIN)
    assert pickle.loads(pickle.dumps(security)).password == "s3cret"
    assert "s3cret" not in repr(security)
    assert (
        str(security) == "SASL_PLAINTEXT by PLAIN as 'reader'" and str(parse_security(TLS)) == "SSL"
    )
    key = {"kafka.ssl.keystore.key": "s3cret", "kafka.ssl.key.password": "s3cret"}
    chain = {"kafka.ssl.keystore.certificate.chain": "c"}
    assert "s3cret" not in repr(parse_security({**TLS, **key, **chain}))


def test_files_are_read_where_the_query_begins(tmp_path: Path) -> None:
    for name in ("ca", "certificate", "key"):
        (tmp_path / name).write_text(f"the {name}")
    given = {f"kafka.ssl.{name}.location": str(tmp_path / name) for name in ("ca", "key")}
    given["kafka.ssl.certificate.location"] = str(tmp_path / "certificate")
    loaded = parse_security({**TLS, **given}).loaded()
    assert loaded.ca and loaded.certificate and loaded.key
    texts = [each.text for each in (loaded.ca, loaded.certificate, loaded.key)]
    assert texts == ["the ca", "the certificate", "the key"]
    assert loaded.loaded() == loaded
    with pytest.raises(ConfigError, match=r"kafka.ssl.ca.location names .*absent, .* be read"):
        parse_security({**TLS, "kafka.ssl.ca.location": str(tmp_path / "absent")}).loaded()


def test_the_hosts_name_is_checked_unless_that_is_switched_off() -> None:
    name = "kafka.ssl.endpoint.identification.algorithm"
    assert parse_security(TLS).check_hostname
    assert parse_security({**TLS, name: "HTTPS"}).check_hostname
    assert not parse_security({**TLS, name: ""}).check_hostname
    assert not parse_security({**TLS, name: "none"}).check_hostname
    with pytest.raises(ConfigError, match="takes https or nothing"):
        parse_security({**TLS, name: "htps"})


def test_a_binary_store_is_refused_with_the_command_that_converts_it() -> None:
    trust = {**TLS, "kafka.ssl.truststore.location": "/t.jks"}
    with pytest.raises(ConfigError, match="a store of type JKS") as caught:
        parse_security(trust)
    assert "keytool -list -rfc -keystore /t.jks > ca.pem" in str(caught.value.hint)
    security = parse_security({**trust, "kafka.ssl.truststore.type": "pem"})
    assert security.ca and security.ca.location == "/t.jks"
    keys = {"kafka.ssl.keystore.location": "/k.p12", "kafka.ssl.keystore.type": "PKCS12"}
    with pytest.raises(ConfigError, match="a store of type PKCS12") as caught:
        parse_security({**TLS, **keys})
    assert "openssl pkcs12" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"kafka.security.protocol": "TLS"}, "takes one of: PLAINTEXT, SSL"),
        ({**TLS, "kafka.ssl.cipher.suites": "x"}, "kafka.ssl.cipher.suites is not supported"),
        ({**LOGIN, "kafka.sasl.kerberos.service.name": "k"}, "kerberos.service.name is not"),
        ({"kafka.security.providers": "x"}, "kafka.security.providers is not supported"),
        ({**TLS, "kafka.sasl.password": "s3cret"}, "kafka.sasl.password has no effect with"),
        ({**LOGIN, "kafka.ssl.ca.location": "/ca"}, "has no effect with .* SASL_PLAINTEXT"),
        ({**LOGIN, "kafka.sasl.mechanism": "GSSAPI"}, "'GSSAPI' is not supported"),
        ({**LOGIN, "kafka.sasl.mechanism": ""}, "it is missing"),
        ({**LOGIN, "kafka.sasl.password": ""}, "needs a name and a password"),
        ({**BY_JAAS, JAAS: "ScramLoginModule required;"}, "needs a name and"),
        ({**BY_JAAS, JAAS: "OAuthBearerLoginModule required;"}, "which is not for .* PLAIN"),
        ({**LOGIN, "kafka.sasl.oauthbearer.scope": "s"}, "scope has no effect with .* PLAIN"),
        ({**BY_JAAS, JAAS: "ScramLoginModule required password=s3cret;"}, "needs a name and"),
        ({**BY_JAAS, JAAS: "username=reader password=s3cret"}, "not of the form"),
        ({**BY_JAAS, JAAS: "Krb5LoginModule required password=s3cret;"}, "module Krb5LoginModule"),
        ({**BY_JAAS, JAAS: 'PlainLoginModule required tokenauth="s3cret";'}, "option tokenauth"),
        ({**BY_JAAS, JAAS: 'PlainLoginModule required password="s3cret;'}, "not of the form a=b"),
        ({**LOGIN, JAAS: "x"}, "choose one way"),
        ({**TLS, "kafka.ssl.key.location": "/k"}, "no certificate that it belongs to"),
        ({**TLS, "kafka.ssl.ca.pem": "x", "kafka.ssl.ca.location": "/c"}, "choose one"),
    ],
)
def test_a_mistake_is_named_without_the_secret(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        parse_security(given)
    assert caught.value.exit_code == 2
    assert "s3cret" not in f"{caught.value} {caught.value.hint}"
