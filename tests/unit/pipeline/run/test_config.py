"""A pipeline's file: what it may say, and how a mistake in it is told."""

import re
from pathlib import Path

import pytest

from catchwater.config import ConfigError
from catchwater.pipeline.run.config import AVAILABLE_NOW, PipelineConfig, load
from catchwater.recovery.ledger import shown
from catchwater.recovery.points import PointPolicy
from catchwater.replay.options import parse_options

FILE = """\
[pipeline]
function = "card_risk:CardRisk"
checkpoint = "checkpoint"

[source]
kafka.bootstrap.servers = "127.0.0.1:9092"
subscribe = "payments"
maxOffsetsPerTrigger = 1000

[sink.alerts]
topic = "alerts"
"""


def read(tmp_path: Path, text: str = FILE, **environment: str) -> PipelineConfig:
    path = tmp_path / "pipeline.toml"
    path.write_text(text)
    return load(path, environment)


def test_paths_are_relative_to_the_file_and_the_rest_has_defaults(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert config.checkpoint == tmp_path / "checkpoint"
    assert config.source == {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "subscribe": "payments",
        "maxOffsetsPerTrigger": "1000",
    }
    assert config.sinks["alerts"].options.topic == "alerts"
    assert config.functions == ("card_risk:CardRisk",)
    assert (config.tasks, config.shard_count, config.retain) == (2, 4, 5)


def test_a_checkpoint_at_a_url_has_scratch_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHWATER_CACHE", str(tmp_path / "cache"))
    url = (tmp_path / "store").as_uri()
    text = FILE.replace('"checkpoint"', f'"{url}"\nlease = "5s"')
    config = read(tmp_path, text)
    assert config.checkpoint.parent == tmp_path / "cache" / "checkpoints"
    assert (shown(config.checkpoint), config.lease_ms) == (url, 5000)
    assert read(tmp_path, text).checkpoint == config.checkpoint
    other = read(tmp_path, text.replace("store", "store-2")).checkpoint
    assert other not in (config.checkpoint, tmp_path / "store-2")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('"hdfs://host/cards"', "checkpoint must be a folder, or a URL such as s3://bucket/cards"),
        ('"memory://cards"', "checkpoint must be a folder, or a URL such as s3://bucket/cards"),
        ('"s3://key:secret@bucket/cards"', "must not hold credentials"),
        ('"s3://bucket/cards?retries=3"', "has no option retries"),
        ('"checkpoint"\nlease = "1s"', "lease must be at least 2s"),
    ],
)
def test_a_place_that_no_checkpoint_can_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, told: str
) -> None:
    monkeypatch.setenv("CATCHWATER_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match=re.escape(told)):
        read(tmp_path, FILE.replace('"checkpoint"', said))
    assert not (tmp_path / "cache").exists()


def test_dotted_keys_may_be_quoted_or_not(tmp_path: Path) -> None:
    quoted = FILE.replace("kafka.bootstrap.servers", '"kafka.bootstrap.servers"')
    assert read(tmp_path, quoted).source == read(tmp_path).source


def test_every_key_may_come_from_the_environment_which_wins(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        CATCHWATER_PIPELINE__TASKS="3",
        CATCHWATER_SOURCE__KAFKA_BOOTSTRAP_SERVERS="h:1",
        CATCHWATER_SINK__ALERTS__TOPIC="other",
        CATCHWATER_CACHE="not a setting of ours",
        HOME="/",
    )
    assert (config.tasks, config.sinks["alerts"].options.topic) == (3, "other")
    assert config.source["kafka.bootstrap.servers"] == "h:1"


def test_a_chain_with_inputs_tables_and_dead_letters_is_read(tmp_path: Path) -> None:
    text = FILE.replace('function = "card_risk:CardRisk"', 'functions = ["a:First", "b:Second"]')
    text = text.replace('subscribe = "payments"\n', "") + (
        '[inputs]\norders = "o"\npayments = "p"\n'
        '[table.merchants]\ntopic = "m"\n'
        '[dead_letter]\ntopic = "dead"\n'
        '[call.score]\ntimeout = "1s"\n'
    )
    config = read(tmp_path, text, CATCHWATER_TABLE__MERCHANTS__TOPIC="m2")
    assert config.functions == ("a:First", "b:Second")
    assert config.source_options["subscribe"] == "o,p"
    assert config.tables == {"merchants": "m2"}
    assert config.table_options == {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "subscribe": "m2",
        "startingOffsets": "earliest",
    }
    assert config.dead_letter is not None and config.dead_letter.options.topic == "dead"
    assert config.calls == {"score": {"timeout": "1s"}}
    assert list(config.sinks) == ["alerts"]


def test_a_sink_named_dead_letter_takes_the_poisoned_events(tmp_path: Path) -> None:
    config = read(tmp_path, FILE + '[sink.dead-letter]\nkind = "log"\ntopic = "dead"\n')
    assert config.dead_letter is not None and list(config.sinks) == ["alerts"]


def test_a_source_may_ask_for_a_login_whose_password_is_not_in_the_file(tmp_path: Path) -> None:
    login = """
kafka.security.protocol = "SASL_SSL"
kafka.sasl.mechanism = "PLAIN"
kafka.sasl.username = "reader"
"""
    text = FILE.replace("[source]", f"[source]{login}")
    config = read(tmp_path, text, CATCHWATER_SOURCE__KAFKA_SASL_PASSWORD="s3cret")
    assert parse_options(config.source_options).security.password == "s3cret"
    assert "s3cret" not in repr(config)


def test_a_secret_may_stand_in_a_file_of_its_own_and_is_never_quoted(tmp_path: Path) -> None:
    (tmp_path / "client.properties").write_text("password = s3cret\n")
    login = """
kafka.security.protocol = "SASL_SSL"
kafka.sasl.mechanism = "PLAIN"
kafka.sasl.username = "${env:WHO}"
kafka.sasl.password = "${file:client.properties:password}"
kafka.ssl.ca.location = "ca.pem"
"""
    text = FILE.replace("[source]", f"[source]{login}")
    far = f'[sink.far]\nkind = "kafka"\ntopic = "t"{login}'
    config = read(tmp_path, text + far, WHO="reader")
    security = parse_options(config.source_options).security
    assert (security.username, security.password) == ("reader", "s3cret")
    assert security.ca and security.ca.location == str(tmp_path / "ca.pem")
    assert config.sinks["far"].options.kafka["kafka.sasl.password"] == "s3cret"
    assert "s3cret" not in repr(config)
    with pytest.raises(ConfigError, match=r"line \d+: kafka.sasl.username: .*env:WHO. names no"):
        read(tmp_path, text)
    with pytest.raises(ConfigError, match="password must be a text, not a float") as caught:
        read(tmp_path, text.replace('"${file:client.properties:password}"', "12.75"), WHO="r")
    assert "12.75" not in str(caught.value)


def test_durations_and_triggers_are_read(tmp_path: Path) -> None:
    recovery = '[recovery]\nmax_restore = "10m"\nmax_replay = "30s"'
    text = FILE.replace("[source]", f'trigger = "2s"\n{recovery}\n[source]')
    config = read(tmp_path, text)
    assert (config.trigger, config.max_restore_ms) == ("2000 milliseconds", 600_000)
    assert config.max_replay_ms == 30_000
    assert read(tmp_path, text.replace("2s", "available-now")).trigger == AVAILABLE_NOW


@pytest.mark.parametrize(
    ("change", "into", "told", "hint"),
    [
        ("subscribe =", "subscibe =", "line 7: there is no subscibe", "nearest is subscribe"),
        ("[pipeline]", "[pipelin]", "line 1: there is no [pipelin]", "nearest is pipeline"),
        ("checkpoint =", "chekpoint =", "line 3: there is no chekpoint", "nearest is checkpoint"),
        ('function = "card_risk:CardRisk"\n', "", "function in [pipeline] is missing", None),
        ('subscribe = "payments"\n', "", "subscribe in [source] is missing", None),
        ('topic = "alerts"', "", "topic in [sink.alerts] is missing", None),
        ('[sink.alerts]\ntopic = "alerts"\n', "", "no sink", "[sink.alerts]"),
        ("[sink.alerts]\n", "[sink]\n", "line 11: a sink has a name", None),
        ("[source]", "tasks = 0\n[source]", "line 5: tasks must be a whole number", None),
        ("[source]", "tasks = [1]\n[source]", "tasks must be a text", None),
        ("[source]", 'trigger = "soon"\n[source]', "line 5: trigger: 'soon' is not a dur", None),
        ("[source]", "[source", "not valid TOML", None),
        ("[source]", "functions = []\n[source]", "line 5: functions must be a list", None),
        ("[source]", 'functions = ["a:B"]\n[source]', "either function or functions", None),
        ("[source]", 'poison = "ignore"\n[source]', 'line 5: poison must be "fail"', None),
        ("[source]", 'spare = "yes"\n[source]', "line 5: spare must be true or false, not", None),
        ("[source]", "[table]\nt = 1\n[source]", "a table has a name: [table.NAME]", None),
        ("[source]", "[table.t]\ntopics = 1\n[source]", "no topics in [table.t]", "topic"),
    ],
)
def test_a_mistake_is_told_with_its_line_and_the_way_out(
    tmp_path: Path, change: str, into: str, told: str, hint: str | None
) -> None:
    with pytest.raises(ConfigError) as error:
        read(tmp_path, FILE.replace(change, into))
    assert told in str(error.value)
    assert hint is None or hint in (error.value.hint or "")


def test_an_unknown_variable_and_an_absent_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="variable CATCHWATER_PIPELINE__TASK"):
        read(tmp_path, CATCHWATER_PIPELINE__TASK="3")
    with pytest.raises(ConfigError, match="There is no pipeline file"):
        load(tmp_path / "absent.toml", {})


def test_a_variable_for_a_sink_that_the_file_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"CATCHWATER_SINK__ALERST__TOPIC: there is no") as told:
        read(tmp_path, CATCHWATER_SINK__ALERST__TOPIC="other")
    assert "The nearest is alerts." in str(told.value.hint)
    with pytest.raises(ConfigError, match=r"CATCHWATER_PIPLINE__TASKS: there is no \[pipline\]"):
        read(tmp_path, CATCHWATER_PIPLINE__TASKS="3")
    assert read(tmp_path, CATCHWATER_BROKER__LOG_DIRS="/data").tasks == 2


def test_a_variable_finds_what_no_variable_can_spell(tmp_path: Path) -> None:
    text = FILE.replace("[sink.alerts]", "[sink.My-Alerts]") + (
        '[sink.lake]\nkind = "iceberg"\ntable = "a.b"\ncatalog.uri = "u"\n'
        'catalog."s3.secret-access-key" = "?"\n'
        "[sink.empty]\n"
    )
    config = read(
        tmp_path,
        text,
        CATCHWATER_SINK__MY_ALERTS__TOPIC="other",
        CATCHWATER_SINK__LAKE__CATALOG_S3_SECRET_ACCESS_KEY="s3cret",
        CATCHWATER_SINK__EMPTY__TOPIC="whole",
    )
    assert config.sinks["My-Alerts"].options.topic == "other"
    assert config.sinks["lake"].options.catalog["catalog.s3.secret-access-key"] == "s3cret"
    assert config.sinks["empty"].options.topic == "whole"
    with pytest.raises(ConfigError, match=r"topic in \[sink.empty\] is missing"):
        read(tmp_path, text)


@pytest.mark.parametrize("address", ["9400", ":9400", "127.0.0.1", "host:port", "h:65536"])
def test_metrics_are_asked_for_at_a_host_and_a_port(tmp_path: Path, address: str) -> None:
    text = FILE.replace("[source]", f'metrics = "{address}"\n[source]')
    with pytest.raises(ConfigError, match=r"line 5: metrics must be of the form host:port, not"):
        read(tmp_path, text)
    good = FILE.replace("[source]", 'metrics = "[::1]:9400"\n[source]')
    assert read(tmp_path, good).metrics == "[::1]:9400"


@pytest.mark.parametrize("servers", ["127.0.0.1", "h:1,g", "h:port"])
def test_brokers_without_a_port_are_a_mistake_in_the_file(tmp_path: Path, servers: str) -> None:
    with pytest.raises(ConfigError, match=r"line 6: '\S+' in bootstrap.servers is not") as told:
        read(tmp_path, FILE.replace("127.0.0.1:9092", servers))
    assert told.value.exit_code == 2


SPARK = (
    FILE
    + """
[spark]
master = "local[3]"
spark.executor.memory = "2g"
spark.hadoop.fs.s3a.endpoint = "h"
"""
)


def test_sparks_settings_have_a_section(tmp_path: Path) -> None:
    wanted = {
        "master": "local[3]",
        "spark.executor.memory": "2g",
        "spark.hadoop.fs.s3a.endpoint": "h",
    }
    assert read(tmp_path, SPARK).spark == wanted
    changed = read(tmp_path, SPARK, CATCHWATER_SPARK__MASTER="spark://h:7077")
    assert changed.spark == wanted | {"master": "spark://h:7077"}
    assert read(tmp_path).spark == {}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("spark.sql.streaming.minBatchesToRetain = 7", "retain in [recovery]"),
        ("spark.sql.shuffle.partitions = 7", "say tasks in [pipeline]"),
        ("spark.hadoop.fs.file.impl = 'X'", "would outlive them"),
        ("spark.master = 'local'", "Say master in [spark]"),
        ("spark.app.name = 'x'", "say name in [pipeline]"),
    ],
)
def test_settings_that_are_ours_are_refused_with_the_reason(
    tmp_path: Path, line: str, told: str
) -> None:
    with pytest.raises(ConfigError, match="is not for a pipeline's file to set") as raised:
        read(tmp_path, SPARK + line)
    assert "pipeline.toml, line 1" in str(raised.value)
    assert told in (raised.value.hint or "")


@pytest.mark.parametrize(
    "master", ["yarn", "k8s://h:443", "k8s://https://kubernetes.default.svc", "spark://a:1,b:2"]
)
def test_a_pipeline_runs_on_every_cluster_that_spark_has(tmp_path: Path, master: str) -> None:
    assert read(tmp_path, SPARK, CATCHWATER_SPARK__MASTER=master).spark["master"] == master


@pytest.mark.parametrize("master", ["Yarn", "k8s://", "spark://h", "local[x]", "mesos://h:1"])
def test_a_master_that_spark_does_not_have_is_refused(tmp_path: Path, master: str) -> None:
    with pytest.raises(ConfigError, match="is none that Spark has"):
        read(tmp_path, SPARK, CATCHWATER_SPARK__MASTER=master)


def test_what_is_no_setting_of_sparks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no executor.memory in \[spark\]"):
        read(tmp_path, SPARK + "executor.memory = '1g'")


def with_recovery(*lines: str) -> str:
    return FILE + "\n[recovery]\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("lines", "kept", "back_ms"),
    [
        ((), PointPolicy(5), None),
        (("retain = 9",), PointPolicy(9), None),
        (('checkpoints = "60s"',), PointPolicy(5, 60_000), 300_000),
        (('checkpoints = "60s"', "retain = 9"), PointPolicy(9, 60_000), 540_000),
        (
            ('checkpoints = "60s"', 'retain = "24h"'),
            PointPolicy(2000, 60_000, 86_400_000),
            86_400_000,
        ),
        (
            ('checkpoints = "60s"', 'retain = "24h"', "retain_most = 60"),
            PointPolicy(60, 60_000, 86_400_000),
            3_600_000,
        ),
    ],
)
def test_restore_points_are_chosen_by_time_or_number(
    tmp_path: Path, lines: tuple[str, ...], kept: PointPolicy, back_ms: int | None
) -> None:
    config = read(tmp_path, with_recovery(*lines))
    assert config.kept == kept
    assert config.kept.window_ms == back_ms


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (('retain = "24h"',), "retain = '24h' needs checkpoints"),
        (('checkpoints = "60s"', 'retain = "30s"'), "retain = '30s' is shorter than checkpoints"),
        (('checkpoints = "900ms"',), "checkpoints must be at least 1s"),
        (("retain = 0",), "retain must be a whole number from 1 on"),
        (('retain = "a day"',), 'retain must be a whole number from 1 on, or a time such as "24h"'),
        (("retain_most = 0",), "retain_most must be a whole number from 1 on"),
    ],
)
def test_restore_points_that_cannot_be_are_refused_with_the_line(
    tmp_path: Path, lines: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)) as raised:
        read(tmp_path, with_recovery(*lines))
    assert "pipeline.toml, line" in str(raised.value)


def test_restore_points_closer_than_epochs_begin_are_refused(tmp_path: Path) -> None:
    text = with_recovery('checkpoints = "10s"').replace("[source]", 'trigger = "60s"\n[source]')
    with pytest.raises(ConfigError, match="shorter than an epoch, which begins every 1 min"):
        read(tmp_path, text)
    assert read(tmp_path, text.replace("60s", "10s")).checkpoints_ms == 10_000


def test_an_epoch_may_not_be_given_less_than_a_start_takes(tmp_path: Path) -> None:
    text = FILE.replace("[source]", 'epoch_timeout = "30m"\n[source]')
    assert read(tmp_path, text).epoch_timeout_ms == 1_800_000
    with pytest.raises(ConfigError, match="line 5: epoch_timeout must be at least 1m"):
        read(tmp_path, text.replace("30m", "30s"))
