"""Our client and source against an Apache Kafka that asks for TLS, logins and certificates."""

import contextlib
import json
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.kafka_jars import MavenMissing
from tests.secured_kafka import (
    JAAS,
    KEY_PASSWORD,
    PASSWORD,
    REAUTHENTICATE_MS,
    TOPIC,
    USERS,
    VALUES,
    Kafka,
    SecuredKafkaMissing,
    secured_kafka,
)
from tests.token_endpoint import AUDIENCE

from catchwater.cli import main, topic
from catchwater.cli.console import client_of
from catchwater.clock import Clock
from catchwater.config import ConfigError
from catchwater.replay.options import SourceOptions, parse_options
from catchwater.replay.read import ReadSettings, read_task
from catchwater.replay.subscription import Subscription
from catchwater.sinks import kafka_client as client
from catchwater.sinks.base import OutputRecord, Staged
from catchwater.sinks.config import SinkContext, parse
from catchwater.sinks.epochs import Archive, StagedFile
from catchwater.sinks.kafka_client import NotAdmitted
from catchwater.sinks.kinds.kafka import KIND, KafkaSink
from catchwater.sinks.reconcile import verify
from catchwater.wire.client import EARLIEST, LATEST, Client
from catchwater.wire.connection import Connection, ConnectionLost
from catchwater.wire.security.oauth import TokenRefused
from catchwater.wire.security.sasl import LoginFailed
from catchwater.wire.security.settings import parse_security
from catchwater.wire.security.tls import BrokerNotTrusted, TlsFailed

PATIENCE_S, UNANSWERED_S = 60.0, 2.0
"""What is waited for an answer that comes, and for one that does not."""
ATTEMPTS = 8
"""A machine that stands still for longer than what a login is renewed ahead loses a connection."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(secured_kafka(tmp_path_factory.mktemp("secured")))
        except (MavenMissing, SecuredKafkaMissing) as reason:
            pytest.skip(str(reason))
        yield made


def read(given: dict[str, str]) -> list[bytes]:
    """All values in the order of their numbers, planned here and read as on another machine."""
    options = parse_options(given)
    query = Subscription(options)
    tasks = query.tasks(query.starting(EARLIEST), query.ending())
    assert query.control_url() is None
    query.close()
    settings = ReadSettings(options.bootstrap, ("value",), security=options.security.loaded())
    sent: ReadSettings = pickle.loads(pickle.dumps(settings))
    rows = [value for task in tasks for part in read_task(task, sent) for value in part["value"]]
    return sorted((value.as_py() for value in rows), key=int)


def connect(options: SourceOptions, timeout_s: float = PATIENCE_S) -> None:
    """Raises what a query raises that cannot begin."""
    with Client(options.bootstrap, timeout_s=timeout_s, security=options.security) as client:
        client.metadata([TOPIC])


@pytest.mark.parametrize("mechanism", USERS)
def test_a_user_reads_by_each_mechanism(kafka: Kafka, mechanism: str) -> None:
    assert read(kafka.options(mechanism)) == VALUES


def test_javas_form_of_a_login_will_do(kafka: Kafka) -> None:
    options = kafka.options("SCRAM-SHA-512", ssl_endpoint_identification_algorithm="")
    name, password = options.pop("kafka.sasl.username"), options.pop("kafka.sasl.password")
    options["kafka.ssl.truststore.location"] = options.pop("kafka.ssl.ca.location")
    options |= {
        "kafka.ssl.truststore.type": "PEM",
        "kafka.sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required "
        f'username="{name}"\n password="{password}";',
    }
    assert read(options) == VALUES


def test_a_client_shows_its_certificate(kafka: Kafka) -> None:
    ca, both = kafka.file("ca.crt"), kafka.file("client.pem")
    java_names = {"truststore_type": "PEM", "truststore_location": ca, "keystore_type": "PEM"}
    assert read(kafka.mutual(**java_names, keystore_location=both)) == VALUES
    named = {
        "ca_location": ca,
        "certificate_location": kafka.file("client.crt"),
        "key_location": kafka.file("client.secret.key"),
    }
    assert read(kafka.mutual(**named, key_password=KEY_PASSWORD)) == VALUES
    with pytest.raises(ConfigError, match="holds no usable certificate"):
        connect(parse_options(kafka.mutual(**named, key_password="another")))


def test_without_a_certificate_it_is_refused(kafka: Kafka) -> None:
    with pytest.raises(TlsFailed, match="bad certificate") as caught:
        connect(parse_options(kafka.mutual(ca_location=kafka.file("ca.crt"))))
    assert "client certificate" in str(caught.value.hint)


@pytest.mark.parametrize("mechanism", USERS)
def test_a_wrong_password_is_named_and_not_shown(kafka: Kafka, mechanism: str) -> None:
    options = parse_options(kafka.options(mechanism, sasl_password="wr0ng"))
    began_s = time.monotonic()
    with pytest.raises(LoginFailed, match="SASL_AUTHENTICATION_FAILED") as caught:
        connect(options)
    assert repr(USERS[mechanism]) in str(caught.value) and mechanism in str(caught.value)
    shown = [str(caught.value), str(caught.value.hint), repr(options), repr(caught.value)]
    assert not any("wr0ng" in text for text in shown)
    assert time.monotonic() - began_s < 50, "a refused login is not tried again"


def test_an_unknown_authority_is_named(kafka: Kafka) -> None:
    options = kafka.options("PLAIN", ssl_ca_location=kafka.file("stranger.crt"))
    with pytest.raises(BrokerNotTrusted, match=f"{kafka.address('LOGIN')} is not trusted"):
        connect(parse_options(options))


def test_another_host_than_the_certificates_is_named(kafka: Kafka) -> None:
    options = kafka.options("PLAIN", bootstrap_servers=f"localhost:{kafka.ports['LOGIN']}")
    with pytest.raises(BrokerNotTrusted, match="Hostname mismatch"):
        connect(parse_options(options))
    connect(parse_options(options | {"kafka.ssl.endpoint.identification.algorithm": ""}))


def test_a_client_that_is_not_secured_is_told_why_nobody_answers(kafka: Kafka) -> None:
    with (
        pytest.raises(ConnectionLost) as caught,
        Client(kafka.address("LOGIN"), timeout_s=UNANSWERED_S) as c,
    ):
        c.metadata([TOPIC])
    assert "(security.protocol)" in str(caught.value.hint)


def test_tls_is_not_spoken_everywhere(kafka: Kafka) -> None:
    options = kafka.options("PLAIN", bootstrap_servers=kafka.address("INTERNAL"))
    with pytest.raises(ConnectionLost) as caught:
        connect(parse_options(options), timeout_s=UNANSWERED_S)
    assert "(security.protocol)" in str(caught.value.hint)


def test_a_listener_without_logins_says_so(kafka: Kafka) -> None:
    options = kafka.options("PLAIN", bootstrap_servers=kafka.address("INTERNAL"))
    for name in [name for name in options if name.startswith("kafka.ssl.")]:
        del options[name]
    with pytest.raises(LoginFailed, match="ILLEGAL_SASL_STATE"):
        connect(parse_options(options | {"kafka.security.protocol": "SASL_PLAINTEXT"}))


def test_a_login_that_ends_is_renewed_before(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    lost: list[OSError] = []
    connected, broken = Connection.__init__, Connection._lost
    monkeypatch.setattr(
        Connection,
        "__init__",
        lambda self, *a, **k: (made.append("one"), connected(self, *a, **k))[1],
    )
    monkeypatch.setattr(
        Connection, "_lost", lambda self, error: (lost.append(error), broken(self, error))[1]
    )
    security = parse_security(kafka.options("PLAIN"))
    for _ in range(ATTEMPTS):
        made.clear(), lost.clear()
        deadline_s = time.monotonic() + 1.3 * REAUTHENTICATE_MS / 1000
        with Client(kafka.address("LOGIN"), security=security) as client:
            while time.monotonic() < deadline_s:
                assert client.list_offsets({(TOPIC, 0): LATEST}) == {(TOPIC, 0): 150}
                time.sleep(0.05)
        if not lost:
            break
    assert len(made) > 1 and not lost


class Typed:
    """`catchwater` with these arguments, in this process."""

    def __init__(self, kafka: Kafka, patch: pytest.MonkeyPatch, told: Any) -> None:
        self.kafka, self._patch, self._told = kafka, patch, told
        self.timeout_s = PATIENCE_S
        patch.setenv("CATCHWATER_TESTS_PASSWORD", PASSWORD)
        patch.setattr(
            topic,
            "client_of",
            lambda *a, **more: client_of(*a, **{**more, "timeout_s": self.timeout_s}),
        )

    def command_config(self, **changes: str) -> Path:
        """Client properties as Kafka's own tools take them."""
        properties = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f"{JAAS}.scram.ScramLoginModule required \\\n  username=second \\\n"
            '  password="${env:CATCHWATER_TESTS_PASSWORD}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.kafka.file("ca.crt"),
            **{name.replace("_", "."): value for name, value in changes.items()},
        }
        path = self.kafka.folder / "client.properties"
        path.write_text("".join(f"{k}={v}\n" for k, v in properties.items() if v != "absent"))
        return path

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        self._patch.setattr(sys, "argv", ["catchwater", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = self._told.readouterr()
        assert PASSWORD not in out + err
        return int(left.value.code or 0), out, err


@pytest.fixture
def typed(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    return Typed(kafka, monkeypatch, capsys)


def test_commands_take_the_file_that_kafkas_own_tools_take(typed: Typed) -> None:
    reach = ["--bootstrap", typed.kafka.address("LOGIN")]
    reach += ["--command-config", typed.command_config()]
    assert typed("topic", "create", "made", "-p", 3, *reach)[0] == 0
    assert json.loads(typed("topic", "describe", "made", "--json", *reach)[1])[2]["end_offset"] == 0
    assert typed("topic", "delete", "made", "--yes", *reach)[0] == 0
    names = {row["topic"] for row in json.loads(typed("topic", "list", "--json", *reach)[1])}
    assert TOPIC in names and "made" not in names
    code, _, err = typed("txn", "abort", "nobody", *reach)
    assert code == 1 and "no transactional id nobody" in err


@pytest.mark.parametrize(
    ("listener", "changes", "sentence", "hint"),
    [
        ("LOGIN", {"sasl_jaas_config": f"{JAAS}.scram.ScramLoginModule required username=second "
                   "password=wr0ng;"}, "SASL_AUTHENTICATION_FAILED", "user name and password"),
        ("LOGIN", {"ssl_truststore_location": "stranger"}, "is not trusted", "ssl.ca.location"),
        ("localhost", {}, "Hostname mismatch", "Connect by a name that is in the certificate"),
        ("EXPIRED", {"security_protocol": "SSL", "sasl_mechanism": "absent",
                     "sasl_jaas_config": "absent"}, "has expired", "has to be renewed"),
        ("INTERNAL", {}, "broke", "is this a plain port (security.protocol)"),
        ("LOGIN", {"security_protocol": "absent"}, "no effect with security.protocol PLAINTEXT",
         "Set security.protocol"),
    ],
)  # fmt: skip
def test_what_keeps_a_command_out_is_told_with_what_to_do(
    typed: Typed, listener: str, changes: dict[str, str], sentence: str, hint: str
) -> None:
    kafka = typed.kafka
    if "ssl_truststore_location" in changes:
        changes = {"ssl_truststore_location": kafka.file("stranger.crt")}
    on_localhost = f"localhost:{kafka.ports['LOGIN']}"
    address = on_localhost if listener == "localhost" else kafka.address(listener)
    config = typed.command_config(**changes)
    if listener == "INTERNAL":
        typed.timeout_s = UNANSWERED_S
    code, _, err = typed("topic", "list", "--bootstrap", address, "--command-config", config)
    error, told = err.strip().splitlines()
    assert code != 0 and error.startswith("error: ") and told.startswith("hint: ")
    assert sentence in error and hint in told
    assert "kafka.s" not in err and "wr0ng" not in err


def test_a_command_without_a_file_is_told_that_the_port_is_secured(typed: Typed) -> None:
    typed.timeout_s = UNANSWERED_S
    _, _, err = typed("topic", "list", "--bootstrap", typed.kafka.address("LOGIN"))
    assert "does this port ask for TLS or a login (security.protocol)?" in err


class Sinks:
    """Kafka sinks as a pipeline's file describes them, with one epoch to write."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self.kafka, self.folder = kafka, folder
        self.stager = StagedFile(folder.as_uri(), "staged/far")

    def open(self, source: dict[str, str], **section: str) -> KafkaSink:
        config = parse("far", {"kind": "kafka", "topic": "far", "retry": "1ms", **section})
        read = parse_options(source)
        context = SinkContext(
            self.folder.name,
            self.folder.as_uri(),
            self.folder,
            bootstrap=read.bootstrap,
            security=read.security,
        )
        return KIND.open(config, context, Archive(self.stager))

    def stage(self, epoch: int) -> list[Staged]:
        now_ms = time.time_ns() // 1_000_000
        return [self.stager.stage(epoch, 0, [OutputRecord(b"k", b"%d" % epoch, now_ms)], Clock(7))]


@pytest.fixture
def sinks(kafka: Kafka, tmp_path: Path) -> Sinks:
    return Sinks(kafka, tmp_path)


def test_a_sink_writes_to_the_sources_brokers_as_the_source_reads_them(sinks: Sinks) -> None:
    """By a login in Java's form, by a certificate with an encrypted key, by options of its own."""
    kafka = sinks.kafka
    login = kafka.options("SCRAM-SHA-512")
    name, password = login.pop("kafka.sasl.username"), login.pop("kafka.sasl.password")
    login["kafka.sasl.jaas.config"] = (
        f'{JAAS}.scram.ScramLoginModule required username="{name}" password="{password}";'
    )
    shown = kafka.mutual(
        ca_location=kafka.file("ca.crt"),
        certificate_location=kafka.file("client.crt"),
        key_location=kafka.file("client.secret.key"),
        key_password=KEY_PASSWORD,
    )
    own = {k: v for k, v in kafka.options("PLAIN").items() if k.startswith("kafka.")}
    plain = {"kafka.bootstrap.servers": kafka.address("INTERNAL"), "subscribe": TOPIC}
    for epoch, (source, section) in enumerate([(login, {}), (shown, {}), (plain, own)]):
        with contextlib.closing(sinks.open(source, **section)) as sink:
            assert sink.commit(epoch, sinks.stage(epoch)).records == 1
            assert verify(sink, epoch).findings == ()
    with contextlib.closing(sinks.open(login)) as sink:
        sink.commit(2, sinks.stage(2))
        assert (sink.last_epoch(), verify(sink, 2).findings) == (2, ())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [({"sasl_password": "wr0ng"}, "[Aa]uthentication failed"),
     pytest.param({"ssl_ca_location": "stranger.crt"}, "certificate verify failed",
                  marks=pytest.mark.slow)],
)  # fmt: skip
def test_a_sink_that_is_not_let_in_fails_for_good_and_shows_no_password(
    sinks: Sinks, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], sentence: str
) -> None:
    monkeypatch.setattr(client, "REQUEST_S", 5.0)
    if "ssl_ca_location" in change:
        change = {"ssl_ca_location": sinks.kafka.file("stranger.crt")}
    with pytest.raises(NotAdmitted, match=sentence) as caught:
        sinks.open(sinks.kafka.options("SCRAM-SHA-512", **change))
    assert "wr0ng" not in f"{caught.value} {caught.value.hint}"


def test_a_client_reads_and_writes_by_a_providers_tokens(sinks: Sinks) -> None:
    options = sinks.kafka.by_token(scope="reading")
    asked = sinks.kafka.provider.asked
    asked.clear()
    assert read(options) == VALUES
    assert [form["scope"] for form in asked] == [["reading"]], "one token for all connections"
    with contextlib.closing(sinks.open(options)) as sink:
        assert sink.commit(0, sinks.stage(0)).records == 1
    assert len(asked) > 1, "librdkafka asks for its own"


def test_tokens_are_renewed_before_they_end(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker ends a connection whose token has ended as soon as it is used."""
    lost: list[OSError] = []
    broken = Connection._lost
    monkeypatch.setattr(
        Connection, "_lost", lambda self, error: (lost.append(error), broken(self, error))[1]
    )
    monkeypatch.setattr(kafka.provider, "lifetime_s", 4)
    asked = kafka.provider.asked
    for attempt in range(ATTEMPTS):
        security = parse_security(kafka.by_token(scope=f"short-{attempt}"))
        asked.clear(), lost.clear()
        deadline_s = time.monotonic() + PATIENCE_S
        with Client(kafka.address("OAUTH"), security=security) as client:
            while len(asked) < 2:
                assert client.list_offsets({(TOPIC, 0): LATEST}) == {(TOPIC, 0): 150}
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
        if not lost:
            break
    assert not lost


def test_a_token_that_is_not_for_these_brokers_is_refused_and_not_kept(
    kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse_options(kafka.by_token(scope="other"))
    monkeypatch.setattr(kafka.provider, "audience", "others")
    with pytest.raises(LoginFailed, match="SASL_AUTHENTICATION_FAILED") as caught:
        connect(options)
    assert "audience" in str(caught.value.hint)
    assert "'catchwater'" in str(caught.value) and "eyJ" not in str(caught.value)
    monkeypatch.setattr(kafka.provider, "audience", AUDIENCE)
    connect(options)


def test_a_wrong_client_secret_is_named_and_a_provider_that_is_away_is_waited_for(
    kafka: Kafka,
) -> None:
    wrong = parse_options(kafka.by_token(client_credentials_client_secret="wr0ng"))
    with pytest.raises(TokenRefused, match="invalid_client") as caught:
        connect(wrong)
    assert "wr0ng" not in f"{caught.value} {caught.value.hint} {wrong!r}"
    kafka.provider.failures = [503, 500]
    connect(parse_options(kafka.by_token(scope="again")))
    assert not kafka.provider.failures
