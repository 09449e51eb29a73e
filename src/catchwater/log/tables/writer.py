"""Keeps topics' tables up with the log.

Of one topic one broker does it at a time, the holder of a lease; where two think they are, the
table's own compare-and-swap lets one of them through (`iceberg.py`). A turn does the same for each:

1. ask the table where it stands, and drop what was gathered for another place;
2. gather the records from there up to the last stable offset, in bounded memory: what the packer
   has just packed it has handed over (`packed`), the rest is read from where it lies;
3. commit all of it at once.

So a process that ends at any moment leaves files that nobody knows, or a commit that is whole.
A pin keeps the log from deleting what is not in the table yet. Everything here blocks, in one
thread at a time, and rests as long as it works.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import PartitionKey, RunRow, Topic
from catchwater.config import CatchwaterError
from catchwater.log.core import Core
from catchwater.log.format.batches import DamagedObject
from catchwater.log.keep.parquet import GoOn, Stopped, resting
from catchwater.log.storage import SEGMENTS, UNREADABLE
from catchwater.log.tables.open import TableRefused, ValueRefused, open_catalog
from catchwater.log.tables.settings import (
    AS_COLUMN,
    ON_MALFORMED,
    Counts,
    TableSettings,
    has_table,
    settings_of,
)
from catchwater.objects.base import Buffer
from catchwater.values.settings import Registry, ValueSettings

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile

    from catchwater.log.tables.iceberg import TableState, TopicTable

_LOG = logging.getLogger(__name__)

FILE_BYTES = 64 * 1024 * 1024
"""Of rows in memory before they become a file."""
TURN_S = 5.0
"""After so long what was gathered is committed, and other jobs have their turn."""
_RUNS_A_LOOK = 100


@dataclass
class _Pending:
    """What was gathered for one topic's next commit."""

    table: "TopicTable"
    stood: dict[int, int]
    """By partition: where the table stood then."""
    offsets: dict[int, int] = field(default_factory=dict)
    """By partition: up to where it was gathered."""
    begun: dict[int, int] = field(default_factory=dict)
    """By partition: the first offset that was gathered, if one was."""
    files: list["DataFile"] = field(default_factory=list)
    rows: list["pa.RecordBatch"] = field(default_factory=list)
    newest: list["pa.Table"] = field(default_factory=list)
    """Of a table of newest values, for each file: the last offset of its keys."""
    rows_bytes: int = 0
    records: int = 0
    malformed: int = 0
    left_out: bool = False
    gaps: list[tuple[int, int, int]] = field(default_factory=list)

    def flush(self) -> None:
        """Write what is in memory as a file."""
        import pyarrow as pa

        if self.rows:
            rows = pa.Table.from_batches(self.rows)
            self.rows, self.rows_bytes = [], 0
            if self.table.settings.upserts:
                from catchwater.log.tables.upkeep import newest_rows

                newest, rows = newest_rows(rows)
                self.newest.append(newest)
            if len(rows):
                self.files += self.table.write(rows)

    def newest_of_all(self) -> "pa.Table | None":
        """The last offset of each key; None where that is not asked for."""
        if not self.newest:
            return None
        from catchwater.log.tables.upkeep import joined

        return joined(self.newest)


class TableWriter:
    """The tables of one log."""

    def __init__(self, core: Core, config: LogConfig) -> None:
        self._core = core
        self._properties = dict(config.tables)
        self._pending: dict[bytes, _Pending] = {}
        self._tables: dict[bytes, tuple[TableSettings, TopicTable]] = {}
        self._stopped: dict[bytes, str] = {}
        self._registry = Registry(config.schema_registry, None, config.schema_registry_login, False)
        self._newest: dict[bytes, ValueSettings] = {}
        """By topic: its values by the newest schema that a registry has given."""
        self.counts: dict[str, Counts] = {}
        """By topic."""

    @cached_property
    def _catalog(self) -> "Catalog":
        """Raises `TableUnavailable`."""
        return open_catalog(self._properties)

    def close(self) -> None:
        """Let go of the catalog."""
        if "_catalog" in self.__dict__:
            with closing(self._catalog):
                del self.__dict__["_catalog"]

    # --- the turn --------------------------------------------------------------------------------

    def advance(self, topic: Topic, stable: Mapping[int, int], go_on: GoOn) -> bool:
        """One turn for a topic, up to these offsets; whether it was brought up to them.

        Damaged records stop their partition, and are logged. Raises `TableUnavailable`,
        `TableRefused`, `BadSchema`, and what the catalog raises; nothing is lost then.
        """
        counts = self.counts.setdefault(topic.name, Counts())
        try:
            is_done = self._advance(topic, stable, go_on, counts)
        except CatchwaterError as error:
            counts.failures += 1
            counts.error = str(error)
            self._pending.pop(topic.id, None)
            raise
        counts.error = self._stopped.pop(topic.id, "")
        return is_done

    def forget(self, topic_id: bytes) -> None:
        """This broker does not write the topic's table (any more)."""
        if pending := self._pending.pop(topic_id, None):
            pending.table.discard(pending.files)

    def state(self, topic: Topic) -> "TableState":
        """Where the topic's table stands; makes it if it is missing. Raises as `advance`."""
        return self.table(topic).open()

    def table(self, topic: Topic) -> "TopicTable":
        """The topic's table. Raises `TableUnavailable` and `BadSchema`."""
        from catchwater.log.tables.iceberg import TopicTable

        settings = self._with_schema(topic, settings_of(topic), asks_again=True)
        known = self._tables.get(topic.id)
        if known is None or known[0] != settings:
            self.forget(topic.id)
            table = TopicTable(
                self._catalog, topic.name, topic.id.hex(), settings, self._core.clock
            )
            known = self._tables[topic.id] = settings, table
        return known[1]

    def look(self, topic: Topic) -> tuple["TopicTable", "TableState | None"]:
        """The topic's table for somebody who asks, in any thread; None: it is not there yet.

        Raises as `advance`, and changes nothing.
        """
        from catchwater.log.tables.iceberg import TopicTable

        settings = self._with_schema(topic, settings_of(topic), asks_again=False)
        clock = self._core.clock
        table = TopicTable(self._catalog, topic.name, topic.id.hex(), settings, clock)
        return table, table.state()

    def _with_schema(
        self, topic: Topic, settings: TableSettings, *, asks_again: bool
    ) -> TableSettings:
        """With the newest schema of a topic whose schemas a registry has.

        One that does not answer lets go on by what it has answered before; raises
        `SchemaUnavailable` where that is nothing.
        """
        if settings.registered is None:
            return settings
        from catchwater.values.registry import SchemaUnavailable
        from catchwater.values.subjects import newest_values

        known = self._newest.get(topic.id)
        if known is None or asks_again:
            try:
                known = newest_values(self._registry, topic.name, settings.registered)
            except SchemaUnavailable as error:
                if known is None:
                    raise
                _LOG.warning("The table of %s goes on by the last schema: %s", topic.name, error)
            self._newest[topic.id] = known
        return replace(settings, values=known)

    def _advance(
        self, topic: Topic, stable: Mapping[int, int], go_on: GoOn, counts: Counts
    ) -> bool:
        pending = self._begin(topic)
        until_s = self._core.clock.monotonic_s() + TURN_S
        is_done = True
        try:
            for partition, end in sorted(stable.items()):
                is_done &= self._gather(topic, partition, end, pending, until_s, go_on)
        except Stopped:
            is_done = False  # what was gathered is whole, and is committed
        if self._commit(topic, pending, counts):
            with suppress(Stopped):  # what was not tidied is another time
                step = resting(self._core.clock, go_on)
                pending.table.tidy(step, lambda: self._is_read(topic))
        return is_done

    def _is_read(self, topic: Topic) -> bool:
        """Whether a query, whose pin has a lease, holds the topic: it may read replaced files."""
        now_ms = self._core.clock.now_ms()
        return any(
            pin.lease_until_ms is not None
            and pin.lease_until_ms > now_ms
            and any(name == topic.name for name, _ in pin.positions)
            for pin in self._core.catalog.pins()
        )

    def _begin(self, topic: Topic) -> _Pending:
        """What was gathered so far, if it still begins where the table stands."""
        table = self.table(topic)
        state = table.open()
        pending = self._pending.get(topic.id)
        if pending is None or pending.stood != state.offsets:
            self.forget(topic.id)
            pending = self._pending[topic.id] = _begun(table, state)
        return pending

    def _gather(
        self,
        topic: Topic,
        partition: int,
        end: int,
        pending: _Pending,
        until_s: float,
        go_on: GoOn,
    ) -> bool:
        """Read one partition's records up to `end`; whether there was time for all of them."""
        if (topic.id, partition) not in self._core.states:
            return True  # deleted just now
        at = self._first(topic, partition, pending)
        while at < end:
            runs = self._core.catalog.runs((topic.id, partition), at, limit=_RUNS_A_LOOK)
            for run in runs:
                if run.base_offset > at:
                    return True  # deleted just now: the next turn finds where the log begins
                if self._core.clock.monotonic_s() > until_s or not go_on():
                    return False
                if not self._read(topic, run, at, end, pending, go_on):
                    return True  # damaged: this partition waits for its repair
                at = pending.offsets[partition]
                if at >= end:
                    break
            if not runs:
                return True
        return True

    def _first(self, topic: Topic, partition: int, pending: _Pending) -> int:
        """The offset to go on from; notes what the log has deleted before it was in the table."""
        state = self._core.states[topic.id, partition]
        known = pending.offsets.get(partition)
        at = state.log_start if known is None else known
        if at > state.high_watermark:
            raise TableRefused(
                f"The table of {topic.name} has offsets of partition {partition} up to {at - 1}, "
                f"and the log ends at {state.high_watermark}: it was restored to an earlier time.",
                hint="catchwater table rewind takes back what the log does not have.",
            )
        if at < state.log_start:
            _LOG.error(
                "Offsets %d to %d of partition %d of %s are not in its table: the log has deleted "
                "them.", at, state.log_start - 1, partition, topic.name,
            )  # fmt: skip
            pending.gaps.append((partition, at, state.log_start))
            pending.begun.setdefault(partition, at)
            at = state.log_start
        pending.offsets[partition] = at
        return at

    def _read(
        self, topic: Topic, run: RunRow, at: int, end: int, pending: _Pending, go_on: GoOn
    ) -> bool:
        """Gather one run's records from `at` up to `end`; False if its partition stops there."""
        try:
            data = self._core.storage.read(run.object, run.byte_offset, run.byte_size)
            base = None if run.object.startswith(SEGMENTS) else run.base_offset
            stop = min(run.last_offset + 1, end)
            step = resting(self._core.clock, go_on)
            self._add(topic.id, run.partition, data, at, stop, pending, base, step)
        except (DamagedObject, *UNREADABLE) as error:
            self._say_stopped(topic, _damaged(topic, run, error))
            return False
        except ValueRefused as error:
            self._say_stopped(topic, str(error))
            return False
        except CatchwaterError as error:
            from catchwater.wire.arrow import RecordsDamaged

            if not isinstance(error, RecordsDamaged):
                raise
            self._say_stopped(topic, _damaged(topic, run, error))
            return False
        return True

    def _say_stopped(self, topic: Topic, text: str) -> None:
        """Note why one partition of a table does not go on."""
        counts = self.counts[topic.name]
        self._stopped[topic.id] = text
        if counts.error != text:
            _LOG.error("%s", text)
        counts.failures += 1

    def _add(
        self,
        topic_id: bytes,
        partition: int,
        data: Buffer,
        at: int,
        stop: int,
        pending: _Pending,
        base_offset: int | None,
        step: Callable[[], None],
    ) -> int:
        """Gather the records in [at, stop); how many. What was gathered until an error stays."""
        from catchwater.log.tables.rows import first_malformed, malformed_in
        from catchwater.wire.arrow import AbortedTransaction

        aborted = [
            AbortedTransaction(row.producer_id, row.first_offset)
            for row in self._core.catalog.aborted((topic_id, partition), at, stop)
        ]
        pending.left_out |= bool(aborted)
        pending.begun.setdefault(partition, at)
        before = pending.records
        for rows in pending.table.shape.rows(
            partition, data, at, stop, base_offset=base_offset, aborted=aborted, step=step
        ):
            at_bad = first_malformed(rows) if pending.table.settings.stops else None
            if at_bad is not None:
                bad, rows = rows.slice(at_bad, 1), rows.slice(0, at_bad)
            if rows.num_rows:
                pending.offsets[partition] = rows.column("offset")[-1].as_py() + 1
            pending.rows.append(rows)
            pending.rows_bytes += rows.nbytes
            pending.records += rows.num_rows
            pending.malformed += malformed_in(rows)
            if pending.rows_bytes >= FILE_BYTES:
                pending.flush()
            if at_bad is not None:
                raise _refused(pending.table.settings.name, partition, bad)
        pending.offsets[partition] = stop
        return pending.records - before

    def _commit(self, topic: Topic, pending: _Pending, counts: Counts) -> bool:
        """Commit what was gathered; whether there was something, and no other broker before."""
        from catchwater.log.tables.iceberg import Batch, TableMoved

        pending.flush()
        spans = {
            partition: (first, pending.offsets[partition])
            for partition, first in pending.begun.items()
            if pending.offsets[partition] > first
        }
        # Markers and what was aborted are no rows; the table moves past them all the same.
        if spans:
            batch = Batch(
                tuple(pending.files), spans, self._core.clock.token(), pending.records,
                pending.malformed, pending.left_out, tuple(pending.gaps), pending.newest_of_all(),
            )  # fmt: skip
            before = pending.table.conflicts
            try:
                state = pending.table.commit(batch)
            except TableMoved:
                # Another broker has been here; the next turn begins where the table stands.
                counts.conflicts += 1
                self.forget(topic.id)
                return False
            finally:
                counts.conflicts += pending.table.conflicts - before
            counts.commits += 1
            counts.records += pending.records
            counts.malformed += pending.malformed
            counts.committed_ms = self._core.clock.now_ms()
            self._pending[topic.id] = _begun(pending.table, state)
        return bool(spans)

    def positions(self, topic: Topic) -> dict[int, int]:
        """Up to where the topic's table is known to be, for its pin; by partition."""
        pending = self._pending.get(topic.id)
        if pending is None:
            return {}
        return pending.offsets | pending.begun

    # --- what the packer hands over --------------------------------------------------------------

    def packed(self, runs: Sequence[RunRow], data: Buffer) -> None:
        """Take the records of a segment that was just written, whose bytes are still in memory.

        Only those that come next in a table that this broker writes, and are stable; what is not
        taken is read later. Raises nothing: packing goes on, whatever becomes of a table.
        """
        topic_id, partition = runs[0][:2]
        pending = self._pending.get(topic_id)
        if pending is None or pending.table.settings.registered:
            return  # by a schema that is newer than the last turn there may be another column
        key = (topic_id, partition)
        at = pending.offsets.get(partition)
        stop = min(runs[-1].last_offset + 1, self._stable(key))
        if at is None or not runs[0].base_offset <= at < stop:
            return
        topic = self._core.topics.by_id(topic_id)
        if topic is None or not has_table(topic):
            return
        try:
            step = resting(self._core.clock, lambda: True)
            taken = self._add(topic_id, partition, data, at, stop, pending, None, step)
        except CatchwaterError as error:
            _LOG.warning("The table of %s reads its records again: %s", topic.name, error)
            self.forget(topic_id)
            return
        self.counts[topic.name].handed_over += taken

    def _stable(self, key: PartitionKey) -> int:
        """Up to where records are stable, as far as that is known without asking; else 0."""
        state = self._core.states.get(key)
        if state is None or not self._core.committer.in_memory:
            return 0
        return state.last_stable_offset


def _begun(table: "TopicTable", state: "TableState") -> _Pending:
    return _Pending(table, dict(state.offsets), dict(state.offsets))


def _damaged(topic: Topic, run: RunRow, error: Exception) -> str:
    return (
        f"Offsets {run.base_offset} to {run.last_offset} of partition {run.partition} of "
        f"{topic.name} cannot be read, and its table waits there: {error}"
    )


def _refused(table: str, partition: int, row: "pa.RecordBatch") -> ValueRefused:
    return ValueRefused(
        f"The value at offset {row.column('offset')[0]} of partition {partition} is not as "
        f"declared, and the table {table} waits there.",
        hint=f"Declare a schema that it fits, or set {ON_MALFORMED}={AS_COLUMN}: its bytes become "
        "a column then.",
    )
