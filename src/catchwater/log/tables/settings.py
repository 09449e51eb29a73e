"""What a topic's settings say about its table, and what is counted of it. Pure.

`catchwater.table` names the table, with its namespace; without it there is none, and nothing of
this chapter is loaded. What the values are is what the topic declares for its Parquet, too
(`topic_settings.declared`); a topic that declares nothing has them as bytes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from catchwater.catalog.rows import Topic
from catchwater.log.topic_settings import declared, registered
from catchwater.values.policy import FIELDS
from catchwater.values.settings import ValueFormat, ValueSettings

TABLE = "catchwater.table"
PARTITION_BY = "catchwater.table.partition.by"
COMMIT_INTERVAL = "catchwater.table.commit.interval.ms"
COMMIT_INTERVAL_MS = 60_000
UPSERT = "catchwater.table.upsert"
ON_MALFORMED = "catchwater.table.on.malformed"
AS_COLUMN, STOP = "column", "stop"
"""What becomes of a value that is not as declared: its bytes in a column, or the table waits."""
KEEP_BYTES = "catchwater.table.value.bytes"
SNAPSHOTS_KEPT = "catchwater.table.snapshot.retention.ms"
SNAPSHOTS_KEPT_MS = 3_600_000

TABLE_NAME = re.compile(r"(|[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)+)")
_TERM = (
    r"(?:(?:identity|year|month|day|hour)\([\w.]+\)|(?:bucket|truncate)\(\d{1,9},[\w.]+\)|[\w.]+)"
)
TERMS = re.compile(rf"(|{_TERM}(,{_TERM})*)")
_ONE_TERM = re.compile(_TERM)
_PACKAGES = ("numba", "pyarrow", "pyiceberg", "sqlalchemy")


@dataclass(frozen=True, slots=True)
class Term:
    """One part of a table's partitioning: a transform of a column."""

    transform: str
    column: str
    number: int = 0
    """Of buckets, or the width of a truncation."""

    @property
    def name(self) -> str:
        """Of the partition's field; Iceberg's own engines name it so."""
        column = self.column.replace(".", "_")
        return column if self.transform == "identity" else f"{column}_{self.transform}"


@dataclass(frozen=True, slots=True)
class TableSettings:
    """A topic's table: its name, how its values become columns, and when it is written."""

    name: str
    values: ValueSettings | None = None
    """None: as bytes."""
    partition_by: tuple[Term, ...] = ()
    interval_ms: int = COMMIT_INTERVAL_MS
    fields: str = ""
    """What becomes of the values' fields (`values.policy`)."""
    upserts: bool = False
    """Whether a row gives way to a later one of its key, and a tombstone takes it away."""
    stops: bool = False
    """Whether the table waits at a value that is not as declared."""
    snapshots_ms: int = SNAPSHOTS_KEPT_MS
    """How long our snapshots stay."""
    registered: ValueFormat | None = None
    """The format of values whose schema a registry has: `values` are what it says."""
    keeps_bytes: bool = False
    """Whether rows have the bytes of declared values, too."""


@dataclass
class Counts:
    """What was done for one topic's table since this broker runs."""

    commits: int = 0
    records: int = 0
    malformed: int = 0
    conflicts: int = 0
    failures: int = 0
    handed_over: int = 0
    """Records that were not read again, because the packer had them."""
    committed_ms: int = 0
    error: str = ""
    """Why the last turn failed; empty: it did not."""


def has_table(topic: Topic) -> bool:
    """Whether the topic is also a table."""
    return bool(topic.config.get(TABLE))


def settings_of(topic: Topic) -> TableSettings:
    """Of a topic that has a table."""
    config = topic.config
    return TableSettings(
        config[TABLE],
        declared(topic),
        terms(config.get(PARTITION_BY, "")),
        int(config.get(COMMIT_INTERVAL, COMMIT_INTERVAL_MS)),
        config.get(FIELDS, ""),
        upserts(topic),
        config.get(ON_MALFORMED, AS_COLUMN) == STOP,
        int(config.get(SNAPSHOTS_KEPT, SNAPSHOTS_KEPT_MS)),
        registered(topic),
        config.get(KEEP_BYTES) == "true",
    )


def upserts(topic: Topic) -> bool:
    """Whether the topic's table has only the newest row of each key."""
    return topic.config.get(UPSERT) == "true"


def terms(text: str) -> tuple[Term, ...]:
    """The parts of a partitioning that `TERMS` matches."""
    return tuple(_term(found) for found in _ONE_TERM.findall(text))


def missing_packages() -> list[str]:
    """What must be installed before tables can be written, and is not."""
    return [name for name in _PACKAGES if find_spec(name) is None]


def refused_table(value: str, properties: Mapping[str, str] | None) -> str | None:
    """Why a topic cannot be a table here, as a sentence; None if it can.

    `properties` are those of the tables' catalog, None where there is none.
    """
    if not value:
        return None
    if TABLE_NAME.fullmatch(value) is None:
        return (
            f"{TABLE} is a table's name with its namespace, such as lake.payments, not {value!r}."
        )
    if missing := missing_packages():
        return (
            f"{TABLE} can only be empty: this broker lacks {' and '.join(missing)}, which the "
            "extra tables brings (pip install 'catchwater[tables]')."
        )
    if properties is None:
        return (
            f"{TABLE} can only be empty: this log encrypts its objects, and nothing says that "
            "tables may lie elsewhere (catchwater.tables.warehouse)."
        )
    return None


def refused_terms(value: str) -> str | None:
    """Why a table cannot be partitioned so, as a sentence; None if it can."""
    if TERMS.fullmatch(value) is None:
        return (
            f"{PARTITION_BY} is a list of columns and of year, month, day, hour, bucket(16,column) "
            f"and truncate(4,column) of them, such as day(timestamp),card; not {value!r}."
        )
    if find_spec("pyiceberg_core") is None and any(
        each.transform != "identity" for each in terms(value)
    ):
        return (
            f"{PARTITION_BY} can only name columns: this broker lacks pyiceberg-core, which the "
            "extra tables brings (pip install 'catchwater[tables]')."
        )
    return None


def _term(text: str) -> Term:
    transform, bracket, inside = text.partition("(")
    if not bracket:
        return Term("identity", text)
    number, comma, column = inside.rstrip(")").partition(",")
    return Term(transform, column, int(number)) if comma else Term(transform, number)
