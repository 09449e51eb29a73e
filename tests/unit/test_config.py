"""The broker's configuration: both syntaxes, the environment, and every way to get it wrong."""

import traceback
from pathlib import Path

import pytest

from catchwater.broker_config import BrokerConfig, load_broker_config, replay_quotas
from catchwater.config import CatchwaterError, ConfigError, duration_ms
from catchwater.kafka_listeners import Address


def written(tmp_path: Path, text: str, name: str = "server.properties") -> Path:
    path = tmp_path / name
    path.write_text(text)
    path.chmod(0o600)  # some have a password
    return path


def refusal(path: Path | None, environment: dict[str, str] | None = None) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_broker_config(path, environment or {})
    assert caught.value.exit_code == 2
    return caught.value


def listening(config: BrokerConfig) -> Address:
    """Of the only Kafka listener."""
    [listener] = config.kafka_listeners
    return listener.address


def test_without_anything_the_defaults_bind_loopback_only() -> None:
    config = load_broker_config(None, {})
    assert config == BrokerConfig()
    assert listening(config).host == config.catchwater_control_listener.host == "127.0.0.1"


def test_properties_and_toml_say_the_same(tmp_path: Path) -> None:
    properties = written(
        tmp_path,
        "# a remark\n! another\n\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs = /tmp/data\n"
        "auto.create.topics.enable=FALSE\nlog.retention.ms=-1\ncatchwater.pack.min.bytes=5\n",
    )
    toml = written(
        tmp_path,
        'listeners = "PLAINTEXT://127.0.0.1:0"\nlog.dirs = "/tmp/data"\n'
        "log.retention.ms = -1\nauto.create.topics.enable = false\n"
        "[catchwater]\npack.min.bytes = 5\n",
        "broker.toml",
    )
    config = load_broker_config(properties, {})
    assert config == load_broker_config(toml, {})
    assert listening(config) == Address("127.0.0.1", 0)
    assert config.log_dirs == Path("/tmp/data")
    assert config.catchwater_pack_min_bytes == 5


def test_the_environment_wins_over_the_file_and_the_command_line_over_both(tmp_path: Path) -> None:
    path = written(tmp_path, "num.partitions=3\nnode.id=1\n")
    environment = {"CATCHWATER_BROKER__NUM_PARTITIONS": "4", "CATCHWATER_BROKER__NODE_ID": "5"}
    config = load_broker_config(path, {**environment, "HOME": "/"}, {"node.id": "6"})
    assert (config.num_partitions, config.node_id) == (4, 6)


def test_an_unknown_key_names_file_line_and_the_nearest_key(tmp_path: Path) -> None:
    path = written(tmp_path, "node.id=1\nnum.partition=3\n")
    error = refusal(path)
    assert str(error) == f"{path}, line 2: there is no setting num.partition."
    assert error.hint == "The nearest is num.partitions."


KAFKA_4 = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""
"""The settings of config/server.properties in Apache Kafka 4.x's distribution."""


def test_apache_kafkas_own_file_starts_and_one_warning_names_what_means_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alone = load_broker_config(written(tmp_path, KAFKA_4), {})
    assert listening(alone) == Address("127.0.0.1", 9092)
    (_, only_here) = sorted(caplog.messages)
    assert "only this machine can connect" in only_here
    named = KAFKA_4.replace("PLAINTEXT://:9092", "PLAINTEXT://0.0.0.0:9092")
    with pytest.raises(ConfigError, match="can be reached from other machines") as told:
        load_broker_config(written(tmp_path, named), {})
    assert "--insecure" in (told.value.hint or "")
    caplog.clear()
    config = load_broker_config(written(tmp_path, KAFKA_4), {}, {"catchwater.insecure": "true"})
    assert config == BrokerConfig(
        catchwater_insecure=True,
        listeners="PLAINTEXT://:9092,CONTROLLER://:9093",
        advertised_listeners="PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093",
        controller_listener_names="CONTROLLER",
        listener_security_protocol_map=config.listener_security_protocol_map,
        log_dirs=Path("/tmp/kraft-combined-logs"),
        log_retention_ms=7 * 24 * 3_600_000,
    )
    assert [each.advertised for each in config.kafka_listeners] == [Address("localhost", 9092)]
    assert listening(config) == Address("0.0.0.0", 9092)
    (warning,) = caplog.messages
    for key in ("num.io.threads", "log.segment.bytes", "controller.quorum.bootstrap.servers"):
        assert warning.count(key) == 1
    for key in ("node.id", "log.dirs", "log.retention.hours", "process.roles"):
        assert key not in warning


def test_what_would_mean_something_else_is_refused_at_one_go_with_reasons(tmp_path: Path) -> None:
    lines = {
        "process.roles=controller": "no controllers to run",
        "ssl.cipher.suites=k": "docs/security.md",
        "sasl.kerberos.service.name=k": "docs/security.md",
        "authorizer.class.name=kafka.X": "docs/security.md",
        "delete.topic.enable=false": "always be deleted",
        "log.cleanup.policy=compact": "cleanup.policy",
        "compression.type=zstd": "compression.type",
    }
    path = written(tmp_path, "\n".join(["num.io.threads=8", *lines, "num.partition=1"]))
    told = str(refusal(path)).splitlines()
    for line, (setting, reason), number in zip(told, lines.items(), range(2, 99), strict=False):
        assert line.startswith(f"{path}, line {number}: {setting}: ")
        assert reason in line
    assert told[-1].endswith("there is no setting num.partition.")
    assert len(told) == len(lines) + 1


def test_what_asks_for_what_is_done_anyway_is_taken_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = "delete.topic.enable=true\nlog.cleanup.policy=delete\ncompression.type=producer\n"
    assert load_broker_config(written(tmp_path, text), {}) == BrokerConfig()
    assert not caplog.messages


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("log.retention.hours=2\n", 7_200_000),
        ("log.retention.hours=-1\n", -1),
        ("log.retention.hours=2\nlog.retention.minutes=1\n", 60_000),
        ("log.retention.minutes=1\nlog.retention.ms=5\nlog.retention.hours=2\n", 5),
    ],
)
def test_the_finest_unit_of_retention_wins_as_in_kafka(
    tmp_path: Path, text: str, expected: int
) -> None:
    assert load_broker_config(written(tmp_path, text), {}).log_retention_ms == expected


def test_kafkas_authorizer_is_taken_where_super_users_are_named(tmp_path: Path) -> None:
    authorizer = (
        "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
        "allow.everyone.if.no.acl.found=false\n"
    )
    guarded = load_broker_config(written(tmp_path, f"{authorizer}super.users=User:admin\n"), {})
    assert guarded.is_guarded and not BrokerConfig().is_guarded
    told = str(refusal(written(tmp_path, authorizer)))
    assert told.count("as soon as super.users names somebody") == 2
    everyone = "super.users=User:a\nallow.everyone.if.no.acl.found=true\n"
    assert "what no rule allows is denied" in str(refusal(written(tmp_path, everyone)))


def test_a_named_listener_is_what_its_protocol_says(tmp_path: Path) -> None:
    names = "listener.security.protocol.map=INSIDE:PLAINTEXT,OUTSIDE:SSL\n"
    config = load_broker_config(written(tmp_path, f"{names}listeners=INSIDE://localhost:1\n"), {})
    [listener] = config.kafka_listeners
    assert (listener.name, listener.protocol) == ("INSIDE", "PLAINTEXT")
    assert listener.address == Address("localhost", 1)
    error = refusal(written(tmp_path, f"{names}listeners=OUTSIDE://h:1\n"))
    assert "listeners is to be encrypted, but there is no certificate" in str(error)


def test_an_unknown_key_in_a_toml_table_names_its_line(tmp_path: Path) -> None:
    path = written(tmp_path, "node.id = 1\n\n[catchwater]\npak.min.bytes = 4\n", "b.toml")
    error = refusal(path)
    assert f"{path}, line 4: there is no setting catchwater.pak.min.bytes." in str(error)
    assert error.hint == "The nearest is catchwater.pack.min.bytes."


def test_an_unknown_environment_variable_is_named() -> None:
    error = refusal(None, {"CATCHWATER_BROKER__NUM_PARTITION": "1"})
    assert "CATCHWATER_BROKER__NUM_PARTITION" in str(error)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("num.partitions=0", "a whole number of at least 1"),
        ("num.partitions=ten", "a whole number of at least 1"),
        ("log.retention.ms=-2", "a whole number of at least -1"),
        ("catchwater.cache.bytes=-1", "a whole number of at least 0"),
        ("catchwater.cache.bytes=1e6", "a whole number of at least 0"),
        ("node.id=" + "9" * 400, "a whole number of at least 0"),
        ("auto.create.topics.enable=yes", "true or false"),
        ("listeners=PLAINTEXT://127.0.0.1", "one address like"),
        ("listeners=127.0.0.1:70000", "one address like"),
        ("log.dirs=", "a text"),
    ],
)
def test_a_wrong_value_says_what_would_be_right(tmp_path: Path, line: str, expected: str) -> None:
    error = refusal(written(tmp_path, f"\n{line}\n"))
    assert "line 2" in str(error)
    assert f"{line.partition('=')[0]} must be {expected}" in str(error)


@pytest.mark.parametrize("value", ['"4"', "true", "1.5", "[1]"])
def test_toml_numbers_are_numbers(tmp_path: Path, value: str) -> None:
    path = written(tmp_path, f"num.partitions = {value}\n", "b.toml")
    if value == '"4"':
        assert load_broker_config(path, {}).num_partitions == 4
    else:
        assert "whole number" in str(refusal(path))


def test_a_key_set_twice_names_both_lines(tmp_path: Path) -> None:
    error = refusal(written(tmp_path, "node.id=1\n\nnode.id=2\n"))
    assert "line 3: node.id was already set in line 1" in str(error)


def test_a_line_without_a_value_is_refused(tmp_path: Path) -> None:
    assert "line 1: expected key=value" in str(refusal(written(tmp_path, "node.id\n")))


def test_a_missing_file_and_a_binary_file_are_refused_by_name(tmp_path: Path) -> None:
    assert "nowhere.properties cannot be read" in str(refusal(tmp_path / "nowhere.properties"))
    binary = tmp_path / "x.properties"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "x.properties cannot be read" in str(refusal(binary))


def test_broken_toml_is_refused_with_its_position(tmp_path: Path) -> None:
    assert "not valid TOML" in str(refusal(written(tmp_path, "a = = 1", "b.toml")))


def test_an_ipv6_address_stands_in_brackets(tmp_path: Path) -> None:
    config = load_broker_config(written(tmp_path, "listeners=PLAINTEXT://[::1]:9092"), {})
    assert listening(config) == Address("::1", 9092)
    assert str(listening(config)) == "[::1]:9092"


PG = "catchwater.catalog=postgresql://u:secret@h/d"
OBJECTS = "catchwater.objects=s3://b/p"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["catchwater.catalog=mysql://u:secret@h/d"], "the URL of a PostgreSQL database"),
        (["catchwater.wal=objects"], "catchwater.wal must be one of file, object, postgres"),
        (["catchwater.wal=object"], "catchwater.wal=object is for several brokers"),
        (["catchwater.wal=postgres"], "catchwater.wal=postgres is for several brokers"),
        (["catchwater.wal.dir=/mnt/wal"], "catchwater.wal.dir is for several brokers"),
        ([PG], "catchwater.objects is not"),
        ([PG, OBJECTS, "catchwater.wal=file"], "needs catchwater.wal.dir"),
        (["catchwater.session.timeout.ms=99"], "a whole number of at least 100"),
    ],
)
def test_stores_that_cannot_go_together_are_refused_by_name(
    tmp_path: Path, lines: list[str], expected: str
) -> None:
    error = refusal(written(tmp_path, "\n".join(lines)))
    assert expected in str(error)
    assert "secret" not in f"{error}{error.hint}"


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["catchwater.objects=s3://b/p"],
        ["catchwater.wal=file"],
        [PG, OBJECTS],
        [PG, OBJECTS, "catchwater.wal=object", "catchwater.wal.linger.ms=100"],
        [PG, OBJECTS, "catchwater.wal=postgres", "broker.rack=a"],
        [PG, OBJECTS, "catchwater.wal.dir=/mnt/wal-before"],
        [PG, OBJECTS, "catchwater.wal=file", "catchwater.wal.dir=/mnt/wal"],
    ],
)
def test_stores_that_go_together_are_taken(tmp_path: Path, lines: list[str]) -> None:
    config = load_broker_config(written(tmp_path, "\n".join(lines)), {})
    assert config.is_shared == (PG in lines)


QUOTAS = "catchwater.replay.quota.overrides"


def test_replay_quotas_are_read_by_account(tmp_path: Path) -> None:
    line = f"{QUOTAS}= User:alice=50000000, client-id:a=b=7 ,client-id:free=-1,\n"
    config = load_broker_config(written(tmp_path, line), {})
    assert replay_quotas(config.catchwater_replay_quota_overrides) == {
        "User:alice": 50_000_000,
        "client-id:a=b": 7,
        "client-id:free": -1,
    }
    assert replay_quotas("") == {}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"{QUOTAS}=alice=5", "holds 'alice=5', which is not of the form"),
        (f"{QUOTAS}=User:=5", "holds 'User:=5'"),
        (f"{QUOTAS}=User:a=5,User:b", "holds 'User:b'"),
        (f"{QUOTAS}=User:a=-2", "holds 'User:a=-2'"),
        (f"{QUOTAS}=User:a=0", "quota of User:a is 0 bytes"),
        ("catchwater.replay.quota.bytes.per.second=0", "quota of everybody is 0 bytes"),
        ("catchwater.replay.quota.bytes.per.second=-2", "at least -1"),
    ],
)
def test_quotas_that_mean_nothing_are_refused(tmp_path: Path, line: str, expected: str) -> None:
    assert expected in str(refusal(written(tmp_path, line)))


def test_a_session_lasts_for_more_than_one_heartbeat(tmp_path: Path) -> None:
    line = "group.consumer.heartbeat.interval.ms=45000\n"
    assert "not less than group.consumer.session.timeout.ms" in str(
        refusal(written(tmp_path, line))
    )
    longer = load_broker_config(
        written(tmp_path, line + "group.consumer.session.timeout.ms=90000\n"), {}
    )
    assert longer.group_consumer_heartbeat_interval_ms == 45_000


def test_durations_have_units():
    assert [duration_ms(text) for text in ("500ms", "30s", "10m", "2h", "1d", "1w")] == [
        500, 30_000, 600_000, 7_200_000, 86_400_000, 604_800_000,
    ]  # fmt: skip
    with pytest.raises(ValueError, match="'5' is not a duration"):
        duration_ms("5")


def test_a_traceback_shows_what_to_do_too() -> None:
    shown = "".join(traceback.format_exception_only(CatchwaterError("It broke.", hint="Mend it.")))
    assert shown == "catchwater.config.CatchwaterError: It broke.\nhint: Mend it.\n"


SECURE = {"catchwater.access.file": "/a.json", "super.users": "User:admin"}


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"listeners": "SSL://127.0.0.1:9093"}, "there is no certificate"),
        ({"listeners": "FOO://127.0.0.1:9093"}, "no listener of FOO"),
        ({"listeners": "SASL_PLAINTEXT://127.0.0.1:9093"}, "there are no users"),
        ({"listeners": "PLAINTEXT://10.0.0.1:9092"}, "can be reached from other machines"),
        ({"listeners": "SASL_PLAINTEXT://10.0.0.1:9092", **SECURE}, "can be reached from other"),
        ({"catchwater.control.listener": "0.0.0.0:9644"}, "can be reached from other machines"),
        ({"catchwater.control.listener": "[::]:9644"}, "can be reached from other machines"),
        ({"catchwater.control.listener": "https://10.0.0.1:9644"}, "there is no certificate"),
        ({"catchwater.access.file": "/a.json"}, "super.users names nobody"),
        ({"catchwater.access.file": "/a.json", "super.users": "alice"}, "super.users names nobody"),
        ({"sasl.enabled.mechanisms": "GSSAPI"}, "cannot have GSSAPI"),
        ({"ssl.keystore.type": "JKS"}, "must be PEM"),
        ({"catchwater.control.ssl.client.auth": "maybe"}, "client.auth cannot be 'maybe'"),
        ({"catchwater.control.ssl.client.auth": "required"}, "nobody is said to sign them"),
        (
            {
                "catchwater.control.ssl.client.auth": "required",
                "ssl.keystore.location": "/k.pem",
                "catchwater.control.listener": "https://127.0.0.1:1",
                "ssl.truststore.location": "/ca.pem",
            },
            "At the control API clients say who they are, but there are no users",
        ),
    ],
)
def test_what_would_let_everybody_in_or_nobody_is_refused(
    settings: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        load_broker_config(None, {}, settings)


LISTENERS = {
    "listeners": "INSIDE://127.0.0.1:9092,OUTSIDE://0.0.0.0:9093,CERTIFIED://0.0.0.0:9094",
    "advertised.listeners": "OUTSIDE://kafka.example:19093",
    "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:SASL_SSL,CERTIFIED:SSL",
    "inter.broker.listener.name": "INSIDE",
    "ssl.keystore.location": "/k.pem",
    "listener.name.outside.sasl.enabled.mechanisms": "SCRAM-SHA-256",
    "listener.name.outside.connections.max.reauth.ms": "10000",
    "listener.name.outside.max.connections": "7",
    "listener.name.outside.catchwater.max.handshake.rate": "50",
    "listener.name.outside.scram-sha-256.sasl.jaas.config":
        "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "listener.name.certified.ssl.client.auth": "required",
    "listener.name.certified.ssl.truststore.location": "/ca.pem",
    "listener.name.certified.ssl.keystore.location": "/other.pem",
    "listener.name.certified.ssl.principal.mapping.rules": "RULE:^CN=(.*?),.*$/$1/,DEFAULT",
    **SECURE,
}  # fmt: skip


def test_each_listener_has_its_own_settings() -> None:
    inside, outside, certified = load_broker_config(None, {}, LISTENERS).kafka_listeners
    assert (inside.protocol, inside.mechanisms, inside.advertised) == ("PLAINTEXT", (), None)
    assert (inside.max_connections, inside.reauth_ms, inside.keystore) == (None, 0, None)
    assert (outside.mechanisms, outside.reauth_ms) == (("SCRAM-SHA-256",), 10_000)
    assert (outside.max_connections, outside.keystore) == (7, Path("/k.pem"))
    assert (outside.max_handshake_rate, certified.max_handshake_rate) == (50, 300)
    assert outside.advertised == Address("kafka.example", 19093)
    assert (certified.client_auth, certified.truststore) == ("required", Path("/ca.pem"))
    assert (certified.keystore, certified.mechanisms) == (Path("/other.pem"), ())
    assert certified.principal_rules == "RULE:^CN=(.*?),.*$/$1/,DEFAULT"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"listeners": "SSL://127.0.0.1:1,SSL://127.0.0.1:2"}, "names SSL twice"),
        ({"advertised.listeners": "OTHER://a:1"}, "names OTHER, which is none"),
        ({"listener.name.outsid.max.connections": "1"}, "no listener of this name"),
        ({"listener.name.outside.num.partitions": "1"}, "no setting num.partitions of its own"),
        ({"listener.name.outside.plain.sasl.jaas.config": "x"}, "no setting plain.sasl.jaas"),
        ({"listener.name.outside.max.connections": "-1"}, "must be a whole number"),
        ({"listener.name.outside.catchwater.max.handshake.rate": "0"}, "nobody could connect"),
        ({"listener.name.certified.ssl.client.auth": "perhaps"}, "cannot be 'perhaps'"),
        ({"listener.name.inside.ssl.client.auth": "required"}, "nobody is said to sign them"),
        ({"listeners": "INSIDE://10.0.0.1:9092"}, "can be reached from other machines"),
        ({"super.users": ""}, "super.users names nobody"),
    ],
)
def test_a_listener_that_cannot_be_is_refused(settings: dict[str, str], expected: str) -> None:
    both = LISTENERS | settings
    if "listeners" in settings:
        both = {k: v for k, v in both.items() if not k.startswith(("listener.name", "advertised"))}
    with pytest.raises(ConfigError, match=expected):
        load_broker_config(None, {}, both)


def test_a_listener_s_protocol_stands_before_its_address() -> None:
    more = {"ssl.keystore.location": "/k.pem", "catchwater.control.listener": "https://[::]:1"}
    config = load_broker_config(
        None, {}, {"listeners": "SASL_SSL://0.0.0.0:9093", **more, **SECURE}
    )
    assert listening(config) == Address("0.0.0.0", 9093)
    assert (config.kafka_listeners[0].protocol, config.catchwater_control_protocol) == (
        *("SASL_SSL", "https"),
    )
    assert config.super_user_names == ["User:admin"]
