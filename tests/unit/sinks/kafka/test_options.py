"""A sink's options on security, in the names that librdkafka takes."""

from typing import Any

import pytest
from confluent_kafka import Producer

from catchwater.config import ConfigError
from catchwater.sinks.config import parse
from catchwater.sinks.kinds.kafka import librdkafka_options
from catchwater.wire.security.settings import UNSECURED, parse_security

LOGIN = {
    "kafka.security.protocol": "SASL_SSL",
    "kafka.sasl.mechanism": "SCRAM-SHA-512",
    "kafka.sasl.jaas.config": 'ScramLoginModule required username="writer" password="s3cret";',
    "kafka.ssl.truststore.type": "PEM",
    "kafka.ssl.truststore.location": "/ca.pem",
    "kafka.ssl.keystore.type": "PEM",
    "kafka.ssl.keystore.location": "/both.pem",
    "kafka.ssl.key.password": "k3y",
    "kafka.ssl.endpoint.identification.algorithm": "",
}
TRANSLATED = {
    "bootstrap.servers": "source:1",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "writer",
    "sasl.password": "s3cret",
    "ssl.ca.location": "/ca.pem",
    "ssl.certificate.location": "/both.pem",
    "ssl.key.location": "/both.pem",
    "ssl.key.password": "k3y",
    "ssl.endpoint.identification.algorithm": "none",
}


def options(section: dict[str, str], **source: Any) -> dict[str, str]:
    return librdkafka_options(section, "source:1", source.get("security", UNSECURED))


def test_javas_names_are_librdkafkas_and_what_is_no_security_is_passed_on() -> None:
    assert options({"topic": "t", "kafka.linger.ms": "7", **LOGIN}) == {
        **TRANSLATED, "linger.ms": "7"
    }  # fmt: skip
    pem = {"kafka.ssl.truststore.certificates": "the ca", "kafka.security.protocol": "SSL"}
    assert options(pem)["ssl.ca.pem"] == "the ca"


def test_librdkafka_takes_the_names_that_it_is_given() -> None:
    taken = {k: v for k, v in TRANSLATED.items() if k == "bootstrap.servers" or "location" not in k}
    Producer({**taken, "log_level": 0}).close()


def test_the_sources_brokers_are_reached_as_the_source_reaches_them() -> None:
    security = parse_security(LOGIN)
    assert options({"topic": "t"}, security=security) == TRANSLATED
    own = {"kafka.security.protocol": "PLAINTEXT"}
    assert options(own, security=security) == {"bootstrap.servers": "source:1"}


def test_no_other_brokers_are_sent_the_sources_password() -> None:
    found = options({"kafka.bootstrap.servers": "far:1"}, security=parse_security(LOGIN))
    assert found == {"bootstrap.servers": "far:1"}


def test_what_librdkafka_alone_knows_is_passed_on_with_all_that_stands_beside_it() -> None:
    kerberos = {"kafka.security.protocol": "SASL_SSL", "kafka.sasl.mechanism": "GSSAPI"}
    assert options(kerberos)["sasl.mechanism"] == "GSSAPI"
    ciphers = {"kafka.security.protocol": "SSL", "kafka.ssl.cipher.suites": "x"}
    assert options(ciphers)["ssl.cipher.suites"] == "x"


def test_what_contradicts_itself_is_refused_when_the_file_is_loaded() -> None:
    section = {"kind": "kafka", "topic": "t", "kafka.sasl.password": "s3cret"}
    with pytest.raises(ConfigError, match=r"\[sink.far\]: .* has no effect with") as caught:
        parse("far", section)
    assert "s3cret" not in str(caught.value)
    kept = parse("far", {"kind": "kafka", "topic": "t", **LOGIN})
    assert "s3cret" not in repr(kept)


def test_librdkafka_asks_for_its_tokens_itself() -> None:
    stem = "kafka.sasl.oauthbearer."
    section = {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        f"{stem}token.endpoint.url": "http://127.0.0.1:1/token",
        f"{stem}client.credentials.client.id": "who",
        f"{stem}client.credentials.client.secret": "s3cret",
        f"{stem}extensions": "logicalCluster=lkc-1",
    }
    found = options(section)
    assert found == {
        "bootstrap.servers": "source:1",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token",
        "sasl.oauthbearer.client.id": "who",
        "sasl.oauthbearer.client.secret": "s3cret",
        "sasl.oauthbearer.extensions": "logicalCluster=lkc-1",
    }
    Producer({**found, "log_level": 0}).close()
