"""The topic settings: their values, defaults and documentation.

All settings of a topic in Kafka 4.3 are here except its internal one. A setting that the log
honours takes the values it can honour. A setting without effect is accepted because tools set it
and its promise is kept anyway, for the reason in its documentation. Every other setting has one
value, what we do, and others are refused by name: no setting is stored and ignored that would
promise something.

Types are DescribeConfigs' numbers. Leaves out the settings of brokers: `broker_config.py` has them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from catchwater.broker_config import BrokerConfig
from catchwater.log.keep.parquet import PARQUET, missing_packages
from catchwater.log.tables.open import properties_of as tables_of
from catchwater.log.tables.settings import (
    AS_COLUMN,
    COMMIT_INTERVAL,
    COMMIT_INTERVAL_MS,
    KEEP_BYTES,
    ON_MALFORMED,
    PARTITION_BY,
    SNAPSHOTS_KEPT,
    SNAPSHOTS_KEPT_MS,
    STOP,
    TABLE,
    TABLE_NAME,
    TERMS,
    UPSERT,
    refused_table,
    refused_terms,
)
from catchwater.log.topic_settings import (
    AS_PRODUCED,
    CLEANUP_POLICY,
    CODECS,
    COMPACT,
    COMPRESSION_TYPE,
    CREATE_TIME,
    DELETE,
    EARLIEST_MS,
    FORMATS,
    FROM_REGISTRY,
    LATEST_MS,
    LOG_APPEND_TIME,
    LONGEST_AFTER,
    LONGEST_BEFORE,
    TIMESTAMP_TYPE,
    UNCHECKED,
    VALIDATION,
    VALUE_FORMAT,
    VALUE_SCHEMA,
    Policy,
    refused_schema,
)
from catchwater.values.policy import FIELDS, FORM

OWNER, RESIDENCY = "catchwater.owner", "catchwater.residency"

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")

LONGEST_VALUE = 1_000
"""Bound on the characters of a value; a longer one is refused before it is parsed."""

BOOLEAN, STRING, INT, LONG, DOUBLE, LIST = 1, 2, 3, 5, 6, 7

_LARGEST = 2**63 - 1
_LARGEST_INT = 2**31 - 1
_DEFAULT = Policy(-1, -1)
_REPLICAS = re.compile(r"\*|none|(\d{1,9}:\d{1,9}(,\d{1,9}:\d{1,9})*)?")


class Setting(NamedTuple):
    """One topic setting. With none of the four kinds of values, its default is the only one."""

    kafka_type: int
    default: Callable[[BrokerConfig], str]
    smallest: int | None = None
    """For numbers."""
    largest: int = _LARGEST
    members: frozenset[str] = frozenset()
    """For lists: of what."""
    choices: tuple[str, ...] = ()
    """For words."""
    form: re.Pattern[str] | None = None
    """For texts."""
    broker_key: str = ""
    """The setting of the broker that is its default, if there is one."""
    longest: int = LONGEST_VALUE
    """For texts: how many characters."""
    has_effect: bool = True
    about: str = ""
    """Its effect, or why it needs none: shown to clients and in docs/protocol.md."""


def _only(value: object) -> Callable[[BrokerConfig], str]:
    return lambda config: str(value)


def _idle(
    kafka_type: int, default: object, about: str, smallest: int, largest: int = _LARGEST
) -> Setting:
    """A number that may be set and has no effect."""
    return Setting(kafka_type, _only(default), smallest, largest, has_effect=False, about=about)


def _idle_switch(default: str, about: str) -> Setting:
    return Setting(
        BOOLEAN, _only(default), choices=("true", "false"), has_effect=False, about=about
    )


_PACKER = "How the log is cut into objects is the packer's, by catchwater.segment.bytes."
_INDEX = "A segment's index is part of it, and its size the packer's."
_SYNCED = "Every acknowledged record is synced to the write-ahead log, with any value."
_NO_REPLICAS = "There is no replication to throttle: every broker reads the same storage."
_CODEC = "Batches are never compressed anew at a level of the topic's."
_TIERED = "The log always lies in its one storage; there is no second tier to move it to."

TOPIC_SETTINGS: Mapping[str, Setting] = {
    PARQUET: Setting(
        BOOLEAN, _only("false"), choices=("true", "false"),
        about="Whether what is packed is also written as Parquet "
              "([history](replay.md#keeping-history-as-parquet))."),
    VALUE_FORMAT: Setting(
        STRING, _only("binary"), choices=tuple(kind.value for kind in FORMATS),
        about="What the values are, for columns of them in that Parquet."),
    VALUE_SCHEMA: Setting(
        STRING, _only(""), form=re.compile("(?s).*"), longest=20_000,
        about="Their schema: DDL for JSON, or an Avro schema; of a table also `registry`, the "
              "newest of TOPIC-value in `catchwater.schema.registry.url`."),
    TABLE: Setting(
        STRING, _only(""), form=TABLE_NAME,
        about="The Iceberg table that it also is ([tables](tables.md)); empty: none."),
    PARTITION_BY: Setting(
        LIST, _only(""), form=TERMS,
        about="How that table is partitioned, such as `day(timestamp),card`."),
    COMMIT_INTERVAL: Setting(
        LONG, _only(COMMIT_INTERVAL_MS), 100,
        about="How often that table is committed to."),
    UPSERT: Setting(
        BOOLEAN, _only("false"), choices=("true", "false"),
        about="Whether that table has only the newest row of each key "
              "([upserts](tables.md#newest-values))."),
    KEEP_BYTES: Setting(
        BOOLEAN, _only("false"), choices=("true", "false"),
        about="Whether that table has declared values as bytes, too, so that it can "
              "[stand in for the log](tables.md#what-the-log-has-deleted)."),
    ON_MALFORMED: Setting(
        STRING, _only(AS_COLUMN), choices=(AS_COLUMN, STOP),
        about="What that table does with a value that is not as declared: its bytes become a "
              "column, or it waits there."),
    SNAPSHOTS_KEPT: Setting(
        LONG, _only(SNAPSHOTS_KEPT_MS), 0,
        about="How long snapshots of that table stay; the newest 100 always do."),
    VALIDATION: Setting(
        STRING, _only(UNCHECKED), choices=(UNCHECKED, "id", "schema", "declared"),
        about="Whether [values that do not fit a schema are refused]"
              "(operations.md#values-that-fit-a-schema)."),
    OWNER: Setting(
        STRING, _only(""), form=re.compile(r"[\w@.: +-]{0,200}"),
        about="Who answers for it, for [evidence](governance.md#where-data-lies)."),
    RESIDENCY: Setting(
        LIST, _only(""), form=re.compile(r"([\w.-]{1,100}(,[\w.-]{1,100})*)?"),
        about="Where it may lie: refused where `catchwater.location` is none of these."),
    FIELDS: Setting(
        STRING, _only(""), form=FORM,
        about="What becomes of fields of its JSON values where our own readers read them: "
              "`drop`, `mask` or `hash` ([policy](governance.md#fields))."),
    CLEANUP_POLICY: Setting(
        LIST, _only(DELETE), members=frozenset((DELETE, COMPACT)),
        about="Delete by age and size, keep each key's last value, both, or neither (empty)."),
    "compression.gzip.level": Setting(INT, _only(-1), about=_CODEC),
    "compression.lz4.level": Setting(INT, _only(9), about=_CODEC),
    COMPRESSION_TYPE: Setting(
        STRING, _only(AS_PRODUCED), choices=(AS_PRODUCED, *CODECS),
        about="As the producer compressed it, or compressed anew by the broker."),
    "compression.zstd.level": Setting(INT, _only(3), about=_CODEC),
    "delete.retention.ms": Setting(
        LONG, _only(_DEFAULT.delete_retention_ms), 0,
        about="How long a tombstone stays once it was compacted for the first time."),
    "file.delete.delay.ms": _idle(
        LONG, 60_000, "Deleted objects go after catchwater.delete.grace.ms.", 0),
    "flush.messages": _idle(LONG, _LARGEST, _SYNCED, 1),
    "flush.ms": _idle(LONG, _LARGEST, _SYNCED, 0),
    "follower.replication.throttled.replicas": Setting(
        LIST, _only(""), form=_REPLICAS, has_effect=False, about=_NO_REPLICAS),
    "index.interval.bytes": _idle(INT, 4_096, _INDEX, 0, _LARGEST_INT),
    "leader.replication.throttled.replicas": Setting(
        LIST, _only(""), form=_REPLICAS, has_effect=False, about=_NO_REPLICAS),
    "local.retention.bytes": Setting(LONG, _only(-2), about=_TIERED),
    "local.retention.ms": Setting(LONG, _only(-2), about=_TIERED),
    "max.compaction.lag.ms": Setting(
        LONG, _only(_LARGEST), about="Compaction promises no latest time."),
    "max.message.bytes": Setting(
        INT, lambda c: str(c.message_max_bytes), 1, _LARGEST_INT, broker_key="message.max.bytes",
        about="The largest record batch, as it is sent."),
    LONGEST_AFTER: Setting(
        LONG, _only(LATEST_MS), 0,
        about="How far in the future a record may lie; a year, where Kafka says an hour."),
    LONGEST_BEFORE: Setting(
        LONG, _only(EARLIEST_MS), 0,
        about="How old a record may be; if set, every batch is opened."),
    TIMESTAMP_TYPE: Setting(
        STRING, _only(CREATE_TIME), choices=(CREATE_TIME, LOG_APPEND_TIME),
        about="Whose clock a record bears: the producer's, or the broker's at the append."),
    "min.cleanable.dirty.ratio": Setting(
        DOUBLE, _only(_DEFAULT.min_dirty_ratio), 0, 1,
        about="How much of a partition must be new before it is compacted again."),
    "min.compaction.lag.ms": Setting(
        LONG, _only(_DEFAULT.min_compaction_lag_ms), 0, about="Younger records stay as they are."),
    "min.insync.replicas": _idle(
        INT, 1, "An acknowledged record is in the storage that every broker reads, not on some of "
        "them; a broker alone takes 1 only.", 1, _LARGEST_INT),
    "preallocate": _idle_switch("false", "Objects are written once, whole."),
    "remote.log.copy.disable": Setting(BOOLEAN, _only("false"), about=_TIERED),
    "remote.log.delete.on.disable": Setting(BOOLEAN, _only("false"), about=_TIERED),
    "remote.storage.enable": Setting(BOOLEAN, _only("false"), about=_TIERED),
    "retention.bytes": Setting(
        LONG, lambda c: str(c.log_retention_bytes), -1, broker_key="log.retention.bytes",
        about="What a partition may hold before its oldest records go; -1: without limit."),
    "retention.ms": Setting(
        LONG, lambda c: str(c.log_retention_ms), -1, broker_key="log.retention.ms",
        about="How old a record may get before it goes; -1: without limit."),
    "segment.bytes": _idle(INT, 2**30, _PACKER, 1, _LARGEST_INT),
    "segment.index.bytes": _idle(INT, 10_485_760, _INDEX, 4, _LARGEST_INT),
    "segment.jitter.ms": _idle(LONG, 0, _PACKER, 0),
    "segment.ms": _idle(LONG, 604_800_000, _PACKER, 1),
    "unclean.leader.election.enable": _idle_switch(
        "false", "No partition has a leader, so none is elected that lacks records."),
}  # fmt: skip


def refusal(name: str, value: str | None, config: BrokerConfig) -> str | None:
    """Why this setting is refused, as a sentence; None if it is not."""
    setting = TOPIC_SETTINGS.get(name)
    if setting is None:
        return f"There is no topic setting {name[:LONGEST_VALUE]!r}."
    if value is None:
        return f"{name} needs a value."
    if len(value) > setting.longest:
        return f"A value of {name} has at most {setting.longest} characters, not {len(value)}."
    if name == TABLE:
        return refused_table(value, tables_of(config))
    if name == PARTITION_BY:
        return refused_terms(value)
    if name == VALUE_SCHEMA and value.strip() == FROM_REGISTRY:
        return _refused_registry(config)
    if name == VALUE_SCHEMA:
        return refused_schema(value)
    return _refused_here(name, value, config) or _refused_value(name, value, setting, config)


def _refused_here(name: str, value: str, config: BrokerConfig) -> str | None:
    """Why this broker, as it is installed and configured, cannot honour the value."""
    if name == "min.insync.replicas" and not config.is_shared and value != "1":
        return f"{name} can only be 1: this broker is alone, and its disk the only place."
    if name == PARQUET and value == "true" and missing_packages():
        return (
            f"{name} can only be false: this broker lacks {' and '.join(missing_packages())}, "
            "which the extra history brings (pip install 'catchwater[history]')."
        )
    if name == VALIDATION and value in ("id", "schema"):
        if not config.catchwater_schema_registry_url:
            return f"{name} cannot be {value}: this broker has no catchwater.schema.registry.url."
    if name == RESIDENCY and value and config.catchwater_location not in value.split(","):
        here = config.catchwater_location
        where = f"it lies in {here}" if here else "it does not say where (catchwater.location)"
        return f"{name} cannot be {value!r} in this log: {where}."
    return None


def _refused_registry(config: BrokerConfig) -> str | None:
    if not config.catchwater_schema_registry_url:
        return (
            f"{VALUE_SCHEMA} cannot be {FROM_REGISTRY}: this broker has no "
            "catchwater.schema.registry.url."
        )
    return refused_schema(FROM_REGISTRY)


def refusals(wanted: Mapping[str, str | None], config: BrokerConfig) -> str | None:
    """The first reason why these settings are refused; None if they are not."""
    reasons = (refusal(name, value, config) for name, value in wanted.items())
    return next((reason for reason in reasons if reason), None)


def _refused_value(name: str, value: str, setting: Setting, config: BrokerConfig) -> str | None:
    if setting.members:
        return _refused_list(name, value, setting.members)
    if setting.choices:
        return _refused_word(name, value, setting.choices)
    if setting.form is not None:
        return None if setting.form.fullmatch(value) else f"{name} cannot be {value!r}."
    if setting.smallest is None:
        only = setting.default(config)
        return None if value == only else f"{name} can only be {only}, not {value!r}."
    pattern = r"\d{1,9}(\.\d{1,9})?" if setting.kafka_type == DOUBLE else r"-?\d{1,19}"
    is_number = re.fullmatch(pattern, value, re.ASCII)
    number = float if setting.kafka_type == DOUBLE else int
    if is_number and setting.smallest <= number(value) <= setting.largest:
        return None
    return f"{name} must be a number from {setting.smallest} to {setting.largest}."


def _refused_list(name: str, value: str, members: frozenset[str]) -> str | None:
    parts = [part.strip() for part in value.split(",")] if value else []
    if members.issuperset(parts) and len(set(parts)) == len(parts):
        return None
    return f"{name} is a list of {' and '.join(sorted(members))}, each once, not {value!r}."


def _refused_word(name: str, value: str, choices: Iterable[str]) -> str | None:
    return None if value in choices else f"{name} is one of {', '.join(choices)}, not {value!r}."


def settings_table() -> str:
    """The table of topic settings in docs/protocol.md, in Markdown; a test keeps it equal."""
    lines = ["| setting | taken | |", "|---|---|---|"]
    config = BrokerConfig()
    for name, setting in TOPIC_SETTINGS.items():
        lines.append(f"| `{name}` | {_taken(setting, config)} | {setting.about} |")
    return "\n".join(lines) + "\n"


def _taken(setting: Setting, config: BrokerConfig) -> str:
    is_fixed = setting.smallest is None and not (setting.members or setting.choices or setting.form)
    if is_fixed:
        return f"only `{setting.default(config)}`"
    return "honoured" if setting.has_effect else "without effect"


def is_legal_topic_name(name: str) -> bool:
    """Kafka's rule (`Topic.validate`): 1 to 249 of the legal characters, not `.` nor `..`.

    Object keys are never built from names.
    """
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")
