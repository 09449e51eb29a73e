"""One topic's Iceberg table: made, fitted to the topic, written, and asked where it stands.

A commit adds data files and says in its snapshot's summary which offset of every partition comes
next (`catchwater.offsets`). Where a table stands is what the newest such snapshot says that its
present one descends from. So rows and offsets change in one step, a table that was rolled back
stands where its rows do, and snapshots of others in between (compaction, deletions) change
nothing. Where that snapshot has expired, the table's property of the same name says it.

The catalog compares and swaps. If another commit comes first, the table is loaded again: where it
still stands where the files begin they are committed once more, otherwise `TableMoved` is raised,
and they are nobody's. A commit whose reply was lost is found by its token. Relies on pyiceberg;
everything blocks.
"""

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from catchwater.clock import Clock
from catchwater.log.tables.open import TableRefused, TableUnavailable, TableUnfit
from catchwater.log.tables.rows import Shape
from catchwater.log.tables.settings import TableSettings
from catchwater.objects.open import s3_endpoint
from catchwater.values.policy import FIELDS, parse_policy
from catchwater.values.settings import identity

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

OFFSETS = "catchwater.offsets"
TOTAL = "catchwater.total"
"""The rows that the table has if nobody else has deleted or added any."""
TOPIC = "catchwater.topic"
TOPIC_ID = "catchwater.topic-id"
COMMIT = "catchwater.commit"
RECORDS = "catchwater.records"
MALFORMED_RECORDS = "catchwater.malformed"
LEFT_OUT = "catchwater.aborted"
"""Whether records of aborted transactions were ever left out."""
GAPS = "catchwater.gaps"
"""Offsets that the log had deleted before they were in the table: [partition, first, stop]."""
COLUMNS = "catchwater.columns"
"""Our name of a column to its id in the table, which may have another name by now."""

UNIFORM = "catchwater.uniform"
"""From where on all rows were written as the values were declared then (`Uniform`)."""

KEPT_SNAPSHOTS, MOST_SNAPSHOTS = 100, 1000
"""Of ours: so many stay however old they are; and no more, however young (and as many again before
any goes), because every one makes the next commit slower."""
_BUCKETS = ("s3://", "s3a://")
_OF_BUCKETS = [
    (f"{prefix}.{name}", ours)
    for name, ours in (
        ("endpoint", "endpoint"),
        ("region", "region"),
        ("access-key-id", "access_key_id"),
        ("secret-access-key", "secret_access_key"),
        ("session-token", "session_token"),
    )
    for prefix in ("client", "s3")
]
"""What pyiceberg's properties are called in obstore; the more special ones come last."""
_TRIES = 10
_NEW_TABLE = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
    "write.metadata.metrics.column.value": "none",
    "write.metadata.metrics.column._malformed": "none",
    "write.metadata.metrics.column._value": "none",
}
"""Every commit adds a version of the metadata, so their list is bounded; nobody asks for the
smallest of all values."""


class TableMoved(Exception):
    """Another commit has moved the table on from where these files begin."""


class Uniform(msgspec.Struct, frozen=True):
    """The rows that were written alike: those that a reader of the topic may be given instead."""

    values: str
    """What the values were declared to be (`values.settings.identity`); empty: bytes."""
    first: dict[int, int]
    """By partition: the first offset of them."""
    malformed: int
    """How many of them are not as declared, at least since then."""
    fields: str = ""
    """What became of the values' fields (`values.policy`)."""
    bytes_from: dict[int, int] = {}
    """By partition: from where on they have the values' bytes, too; none: nowhere."""


class TableState(NamedTuple):
    """What a table says of itself."""

    offsets: dict[int, int]
    """The offset that comes next, by partition; one that is missing has nothing yet."""
    topic_id: str = ""
    snapshot_id: int | None = None
    left_out: bool = False
    gaps: tuple[tuple[int, int, int], ...] = ()
    uniform: Uniform | None = None
    total: int = 0


class Native(NamedTuple):
    """Files that hold the records of these offsets as rows."""

    spans: dict[int, tuple[int, int]]
    """By partition: the offsets that they stand for, end exclusive."""
    whole: list[str]
    """Files with rows of these offsets only."""
    partly: list[str]
    """Files with other rows, too."""
    values: str
    """What their values are (`values.settings.identity`); empty: bytes."""
    malformed: int
    """How many of them are not as declared, at least."""
    left_out: bool


class Batch(NamedTuple):
    """What one commit adds: files, and the offsets that they are."""

    files: Sequence["DataFile"]
    spans: Mapping[int, tuple[int, int]]
    """By partition: from the offset where the table stands to the one that comes next."""
    token: str
    records: int
    malformed: int
    left_out: bool
    gaps: Sequence[tuple[int, int, int]] = ()
    newest: pa.Table | None = None
    """Of a table of newest values: which offset is the last of each key (`upkeep.newest_of`)."""


class TopicTable:
    """The table of one topic, used in one thread at a time."""

    def __init__(
        self, catalog: "Catalog", topic: str, topic_id: str, settings: TableSettings, clock: Clock
    ) -> None:
        """Opens nothing. Raises `BadSchema` where the topic's values cannot be its columns."""
        self.settings = settings
        self.conflicts = 0
        """Commits that had to be tried again."""
        self._catalog = catalog
        self._topic = topic
        self._topic_id = topic_id
        self._clock = clock
        self._policy = parse_policy(settings.fields)
        self._shape = self._shape_without(())
        self._unfit: tuple[str, ...] = ()
        self._names: dict[str, str] = {}
        self._table: Table | None = None
        self._spec_id = -1
        """How the files are partitioned that were written last."""
        self._looked = 0, 0
        """So many files with rows, and with deletes, were left when they were last looked over."""

    def _shape_without(self, unfit: Sequence[str]) -> Shape:
        settings = self.settings
        return Shape(
            settings.values,
            unfit,
            self._policy,
            upserts=settings.upserts,
            keeps_bytes=settings.keeps_bytes,
        )

    @property
    def shape(self) -> Shape:
        """The columns that are written."""
        return self._shape

    def open(self) -> TableState:
        """Make the table if it is missing, fit its columns and partitioning, and say where it is.

        Raises `TableUnavailable` and `TableRefused`.
        """
        with _named(self.settings.name):
            for _ in range(_TRIES):
                try:
                    return self._open()
                except _conflict():
                    self.conflicts += 1
        raise _contended(self.settings.name)

    def state(self) -> TableState | None:
        """Where the table stands; None: there is none. Changes nothing.

        Raises `TableUnavailable`.
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        with _named(self.settings.name):
            try:
                self._table = self._catalog.load_table(self.settings.name)
            except (NoSuchTableError, NoSuchNamespaceError):
                return None
            return table_state(self._table)

    def write(self, rows: pa.Table) -> list["DataFile"]:
        """Write rows of `shape` as data files, which no reader sees yet.

        Raises `TableUnavailable`.
        """
        assert self._table is not None, "the table is open"
        self._spec_id = self._table.spec().spec_id
        with _named(self.settings.name):
            return self._write(self._table, _with_ids(self._table, rows, self._names))

    def _write(self, table: "Table", rows: pa.Table) -> list["DataFile"]:
        token = self._clock.token()
        return [
            _written(table, part, key, f"catchwater-{token}-{index:05d}.parquet")
            for index, (key, part) in enumerate(_parts(table, rows))
        ]

    def commit(self, batch: Batch) -> TableState:
        """Add the files, if the table stands where they begin; the rest is in the module's words.

        Raises `TableMoved`, and `TableUnavailable`, after which it may or may not be so.
        """
        with _named(self.settings.name):
            for _ in range(_TRIES):
                table = self._load()
                if _has_commit(table, batch.token):
                    return table_state(table)
                self._refuse_moved(table, batch)
                try:
                    self._add(table, batch)
                except _conflict():
                    self.conflicts += 1
                    continue
                return table_state(self._load())
        raise _contended(self.settings.name)

    def tidy(self, step: Callable[[], None], is_read: Callable[[], bool]) -> None:
        """Make small files one where that is worth it, and let old snapshots of ours go with the
        files that only they name, unless somebody reads them. `step` is called between pieces of
        the work.

        Changes no row and not where the table stands. Raises `TableUnavailable`, and what `step`
        raises; what was not done is done another time.
        """
        with _named(self.settings.name):
            table = self._load()
            if self._is_worth_a_look(table):
                self._merge(table, step)
                table = self._load()
                self._looked = _counts(table)
            self._expire(table, is_read)

    def discard(self, files: Sequence["DataFile"]) -> None:
        """Delete files that were never committed, as far as that can be done."""
        from catchwater.log.tables import upkeep

        assert self._table is not None, "the table is open"
        upkeep.delete(self._table.io, [file.file_path for file in files])

    def rewind(self, offsets: Mapping[int, int]) -> TableState:
        """Delete the rows from these offsets on, in one commit that says so.

        Raises `TableUnavailable`, `TableRefused`.
        """
        with _named(self.settings.name):
            for _ in range(_TRIES):
                table = self._load()
                now = table_state(table)
                back = {p: at for p, at in offsets.items() if at < now.offsets.get(p, 0)}
                gone = self._files_from(table, back)
                kept, left = self._kept(table, gone, back)
                total = now.total - sum(file.record_count for file in gone) + left
                said = self._summary(now.offsets | back, self._clock.token(), total)
                try:
                    with table.transaction() as change:
                        # Without files it is an empty snapshot, which says where the table stands.
                        with change.update_snapshot(said).overwrite() as overwrite:
                            for file in gone:
                                overwrite.delete_data_file(file)
                            for file in kept:
                                overwrite.append_data_file(file)
                        change.set_properties({name: said[name] for name in (OFFSETS, TOTAL)})
                except _conflict():
                    self.conflicts += 1
                    continue
                return table_state(self._load())
        raise _contended(self.settings.name)

    def _files_from(self, table: "Table", offsets: Mapping[int, int]) -> list["DataFile"]:
        """The files that have rows at these offsets or after them."""
        return [task.file for task in table.scan(row_filter=_from(offsets)).plan_files()]

    def _kept(
        self, table: "Table", gone: Sequence["DataFile"], offsets: Mapping[int, int]
    ) -> tuple[list["DataFile"], int]:
        """The rows of these files before the offsets, as new files; and how many."""
        from catchwater.log.tables import upkeep

        files: list[DataFile] = []
        count = 0
        deleted = upkeep.gone_by(upkeep.deletes_of(table))
        for file in gone:
            rows = pa.concat_tables(upkeep.pieces(table, file, deleted))
            is_back = pa.array([False] * len(rows))
            for partition, at in offsets.items():
                place = pc.equal(rows.column("partition"), partition)
                behind = pc.greater_equal(rows.column("offset"), at)
                is_back = pc.or_(is_back, pc.and_(place, behind))
            rest = rows.filter(pc.invert(is_back))
            if len(rest):
                files += self._write(table, _with_ids(table, rest, {}))
                count += len(rest)
        return files, count

    def behind(self, offsets: Mapping[int, int]) -> int:
        """How many rows of the open table lie at these offsets or after them."""
        assert self._table is not None, "the table is open"
        with _named(self.settings.name):
            return self._table.scan(row_filter=_from(offsets)).count()

    def native(
        self, wanted: Mapping[int, tuple[int, int]], *, as_bytes: bool = False
    ) -> "Native | None":
        """The files of the open table that stand for what is wanted of the topic, as far as they
        do; None: there are none yet. With `as_bytes` those with the values' bytes, if the table
        has them.

        What lies before a gap of the table stands for nothing. Raises `TableUnfit` where somebody
        else has deleted rows or added some, or has renamed a column that is in older files by
        another name, and `TableUnavailable`.
        """
        assert self._table is not None, "the table is open"
        table, state = self._table, table_state(self._table)
        uniform, snapshot = state.uniform, table.current_snapshot()
        if uniform is None or snapshot is None or snapshot.summary is None:
            return None
        name = self.settings.name
        if uniform.fields != self.settings.fields:
            raise TableUnfit(f"{FIELDS} has changed since the rows of {name} were written.")
        if int(snapshot.summary["total-records"] or -1) != state.total or (
            int(snapshot.summary["total-delete-files"] or 0)
        ):
            raise TableUnfit(f"Rows of {name} were deleted or added by somebody else.")
        if not _keeps_names(table, self._shape.schema.names):
            raise TableUnfit(f"A column of {name} was renamed.")
        spans, gaps = {}, dict[int, int]()
        for partition, _, end in state.gaps:
            gaps[partition] = max(end, gaps.get(partition, 0))
        firsts, values = uniform.first, uniform.values
        if as_bytes and uniform.bytes_from:
            firsts, values = uniform.bytes_from, ""
        for partition, (start, end) in wanted.items():
            first = max(start, firsts.get(partition, end), gaps.get(partition, 0))
            stop = min(end, state.offsets.get(partition, 0))
            if first < stop:
                spans[partition] = (first, stop)
        with _named(self.settings.name):
            files = [task.file for task in table.scan(row_filter=_within(spans)).plan_files()]
        whole = [file.file_path for file in files if _lies_in(table, file, spans)]
        partly = [file.file_path for file in files if not _lies_in(table, file, spans)]
        return Native(spans, whole, partly, values, uniform.malformed, state.left_out)

    def by_url(self, found: "Native") -> "Native":
        """The same files by their URLs; one in a bucket is signed for, for a quarter of an hour.

        Raises `TableUnfit` where this broker cannot grant that, and `StoreError`.
        """
        assert self._table is not None, "the table is open"
        properties = self._table.io.properties
        whole, partly = (_by_url(files, properties) for files in (found.whole, found.partly))
        return found._replace(whole=whole, partly=partly)

    def facts(self) -> dict[str, Any]:
        """What an operator asks of the open table."""
        assert self._table is not None, "the table is open"
        table, snapshot = self._table, self._table.current_snapshot()
        summary = snapshot.summary if snapshot else None

        def total(name: str) -> int:
            return int((summary and summary[f"total-{name}"]) or 0)

        return {
            "location": table.location(),
            "snapshot_id": snapshot.snapshot_id if snapshot else None,
            "committed_ms": snapshot.timestamp_ms if snapshot else None,
            "rows": total("records"),
            "files": total("data-files"),
            "bytes": total("files-size"),
            "columns": [field.name for field in table.schema().fields],
            "unfit": list(self._unfit),
        }

    # --- opening ---------------------------------------------------------------------------------

    def _open(self) -> TableState:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        name = self.settings.name
        try:
            table = self._catalog.load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            self._catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
            table = self._catalog.create_table_if_not_exists(
                name,
                self._shape.schema,
                properties={**_NEW_TABLE, TOPIC: self._topic, TOPIC_ID: self._topic_id},
            )
        self._refuse_foreign(table)
        if self._fit(table):
            table = self._load()
        self._table = table
        return table_state(table)

    def _refuse_foreign(self, table: "Table") -> None:
        found = table.properties.get(TOPIC_ID)
        if found == self._topic_id:
            return
        if found is None:
            raise TableRefused(
                f"There is a table {self.settings.name} already, which is not a topic's.",
                hint="Name another one with catchwater.table.",
            )
        raise TableRefused(
            f"The table {self.settings.name} is of another topic, {table.properties.get(TOPIC)} "
            f"({found}); this one is {self._topic} ({self._topic_id}).",
            hint="Was the topic deleted and made again? Drop the table, or name another one with "
            "catchwater.table.",
        )

    def _fit(self, table: "Table") -> bool:
        """Add and widen columns, and follow the partitioning; whether anything was changed."""
        ids = _column_ids(table)
        by_id = {field.field_id: field.name for field in table.schema().fields}
        # A column that was renamed at the table is still the one that ours has been.
        self._names = {ours: by_id[id] for ours, id in ids.items() if id in by_id}
        ours = [
            field.with_name(self._names.get(field.name, field.name)) for field in self._shape.schema
        ]
        fitting = [field for field in ours if _fits(table, field)]
        unfit = {field.name for field in ours} - {field.name for field in fitting}
        there = {back: name for name, back in self._names.items()}
        self._unfit = tuple(sorted(there.get(name, name) for name in unfit))
        if self._unfit and self.settings.values is None:
            raise TableRefused(
                f"The table {self.settings.name} has a column {self._unfit[0]} of another type.",
                hint="Name another table with catchwater.table.",
            )
        if self._unfit:
            self._shape = self._shape_without(self._unfit)
        with table.transaction() as change:
            with change.update_schema() as schema:
                schema.union_by_name(pa.schema(fitting))
            _follow(change, self.settings)
            mapped = {
                name: change.table_metadata.schema()
                .find_field(self._names.get(name, name))
                .field_id
                for name in self._shape.schema.names
            }
            if ids | mapped != ids:
                change.set_properties({COLUMNS: msgspec.json.encode(ids | mapped).decode()})
            is_changed = bool(change._updates)
        return is_changed

    # --- committing ------------------------------------------------------------------------------

    def _load(self) -> "Table":
        """The table as it is now, with transactions that pyiceberg does not retry.

        After a conflict pyiceberg would add the same files to the table as it is by then, and where
        it stands has to be read again first. Only this copy of the metadata is changed.
        """
        self._table = table = self._catalog.load_table(self.settings.name)
        table.metadata.properties["commit.retry.num-retries"] = "0"
        return table

    def _refuse_moved(self, table: "Table", batch: Batch) -> None:
        self._refuse_foreign(table)
        offsets = table_state(table).offsets
        if any(offsets.get(p, first) != first for p, (first, _) in batch.spans.items()):
            raise TableMoved
        if batch.files and table.spec().spec_id != self._spec_id:
            raise TableMoved

    def _add(self, table: "Table", batch: Batch) -> None:
        now = table_state(table)
        ends = {partition: stop for partition, (_, stop) in batch.spans.items()}
        total = now.total + sum(file.record_count for file in batch.files)
        said = self._summary(now.offsets | ends, batch.token, total) | {
            RECORDS: str(batch.records),
            MALFORMED_RECORDS: str(batch.malformed),
        }
        kept = {OFFSETS: said[OFFSETS], TOTAL: said[TOTAL]}
        kept[UNIFORM] = msgspec.json.encode(self._uniform(now, batch)).decode()
        if batch.left_out and not now.left_out:
            kept[LEFT_OUT] = "true"
        if batch.gaps:
            kept[GAPS] = msgspec.json.encode([*now.gaps, *batch.gaps]).decode()
        deletes = self._deletes(table, batch)
        try:
            with table.transaction() as change:
                with self._snapshot(change, table, said, deletes) as snapshot:
                    for file in batch.files:
                        snapshot.append_data_file(file)
                change.set_properties(kept)
        except _conflict():
            if not _has_commit(self._load(), batch.token):
                self.discard(deletes)
            raise

    def _snapshot(
        self, change: Any, table: "Table", said: dict[str, str], deletes: Sequence["DataFile"]
    ) -> Any:
        if not deletes:
            return change.update_snapshot(said).merge_append()
        from catchwater.log.tables.upkeep import Change

        snapshot = Change(change, table.io, said)
        snapshot.add(deletes)
        return snapshot

    # --- its files ---------------------------------------------------------------------------

    def _deletes(self, table: "Table", batch: Batch) -> list["DataFile"]:
        """Deletes of the rows that give way to those of the batch, in it and in the table."""
        from catchwater.log.tables import upkeep

        if batch.newest is None:
            return []
        ids = _column_ids(table)
        columns = upkeep.Columns(*(ids[name] for name in upkeep.Columns._fields))
        files = [*(task.file for task in table.scan().plan_files()), *batch.files]
        found = list(upkeep.superseded(table.io, files, batch.newest, columns))
        if not found:
            return []
        gone = upkeep.gone_by(upkeep.deletes_of(table))
        left = [(file, upkeep.still_there(at, file.file_path, gone)) for file, at in found]
        return upkeep.write_deletes(table, left, f"catchwater-{self._clock.token()}")

    def _is_worth_a_look(self, table: "Table") -> bool:
        from catchwater.log.tables.upkeep import MERGE_LEAST

        now = _counts(table)
        if any(some < before for some, before in zip(now, self._looked, strict=True)):
            self._looked = 0, 0  # somebody else has been here
        return any(
            some - before >= MERGE_LEAST for some, before in zip(now, self._looked, strict=True)
        )

    def _merge(self, table: "Table", step: Callable[[], None]) -> None:
        """Make small files one, and many files with deletes, too."""
        from catchwater.log.tables import upkeep

        now, token = table_state(table), self._clock.token()
        tasks = sorted(table.scan().plan_files(), key=lambda task: _first_offset(table, task.file))
        deletes = upkeep.deletes_of(table)
        gone = upkeep.gone_by(deletes)
        groups = upkeep.groups_to_merge(tasks, table.spec().spec_id, gone)
        old = [task.file for group in groups for task in group]
        left = [task.file for task in tasks if task.file not in old]
        renewed = len(deletes) >= upkeep.MERGE_LEAST
        paths = {file.file_path for file in left}
        dropped = [file for file, of in deletes if renewed or paths.isdisjoint(of)]
        if not old and not dropped:
            return
        new: list[DataFile] = []
        with ExitStack() as undo:
            undo.callback(lambda: self.discard(new))
            for index, group in enumerate(groups):
                name = f"catchwater-{token}-{index:05d}-merged.parquet"
                file = upkeep.merged(
                    table, group, gone, name, lambda rows: _with_ids(table, rows, {}), step
                )
                new += [file] if file else []
            if renewed:
                held = [(file, gone[file.file_path]) for file in left if file.file_path in gone]
                new += upkeep.write_deletes(table, held, f"catchwater-{token}")
            undo.pop_all()
        said = self._summary(now.offsets, token, now.total)
        try:
            with table.transaction() as change:
                snapshot = upkeep.Change(change, table.io, said, merges=True)
                snapshot.add(new)
                snapshot.drop([*old, *dropped])
                snapshot.commit()
        except _conflict():
            self.conflicts += 1
            if not _has_commit(self._load(), token):
                self.discard(new)

    def _expire(self, table: "Table", is_read: Callable[[], bool]) -> None:
        """Expire our oldest snapshots, from time to time; those that a name keeps stay."""
        from catchwater.log.tables import upkeep

        ours = [s for s in table.snapshots() if s.summary and s.summary[OFFSETS]]
        if len(ours) < 2 * KEPT_SNAPSHOTS:
            return
        named = {ref.snapshot_id for ref in table.refs().values()}
        before_ms = table.metadata.last_updated_ms - self.settings.snapshots_ms
        old = [
            s for index, s in enumerate(ours[:-KEPT_SNAPSHOTS])
            if s.snapshot_id not in named
            and (s.timestamp_ms < before_ms or index < len(ours) - MOST_SNAPSHOTS)
        ]  # fmt: skip
        if len(old) < KEPT_SNAPSHOTS or is_read():
            return
        try:
            ids = [snapshot.snapshot_id for snapshot in old]
            table.maintenance.expire_snapshots().by_ids(ids).commit()
        except _conflict():
            return  # the next commit does it
        upkeep.delete(table.io, upkeep.unnamed(self._load(), old))

    def _uniform(self, now: TableState, batch: Batch) -> Uniform:
        values = identity(self.settings.values) if self.settings.values else ""
        begun = {partition: first for partition, (first, _) in batch.spans.items()}
        before = now.uniform
        fields = self.settings.fields
        if before is None or (before.values, before.fields) != (values, fields):
            first, malformed = now.offsets | begun, batch.malformed
        else:
            first, malformed = begun | before.first, before.malformed + batch.malformed
        if not (values and self.settings.keeps_bytes):
            return Uniform(values, first, malformed, fields)
        # Whatever the values were declared to be, their bytes are the same.
        earlier = before.bytes_from if before and before.fields == fields else {}
        return Uniform(values, first, malformed, fields, begun | (earlier or now.offsets))

    def _summary(self, offsets: Mapping[int, int], token: str, total: int) -> dict[str, str]:
        ordered = {str(partition): offsets[partition] for partition in sorted(offsets)}
        return {
            OFFSETS: msgspec.json.encode(ordered).decode(),
            TOTAL: str(total),
            TOPIC: self._topic,
            TOPIC_ID: self._topic_id,
            COMMIT: token,
        }


# --- files ---------------------------------------------------------------------------------------
# pyiceberg's own way from Arrow to a file makes empty lists of nulls where they hold structs, so
# the columns are put in place here; how a file is written and described is pyiceberg's again.


def _with_ids(table: "Table", rows: pa.Table, names: Mapping[str, str]) -> pa.Table:
    """The rows in the table's columns, with their ids; `names` are those that differ from ours."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import sanitize_column_names

    ours = {names.get(name, name): rows.column(name) for name in rows.schema.names}
    target = schema_to_pyarrow(sanitize_column_names(table.schema()))
    columns = [
        ours[field.name].cast(to.type) if field.name in ours else pa.nulls(len(rows), to.type)
        for field, to in zip(table.schema().fields, target, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=target)


def _parts(table: "Table", rows: pa.Table) -> Iterator[tuple[Any, pa.Table]]:
    """The rows by the partition of the table that they lie in, and its key."""
    from pyiceberg.io.pyarrow import _determine_partitions

    if table.spec().is_unpartitioned():
        yield None, rows
        return
    for part in _determine_partitions(table.spec(), table.schema(), rows):
        yield part.partition_key, part.arrow_table_partition


def _written(table: "Table", rows: pa.Table, key: Any, name: str) -> "DataFile":
    """A file with these rows, as a commit takes it."""
    from pyiceberg.io.pyarrow import ParquetFormatModel
    from pyiceberg.schema import sanitize_column_names
    from pyiceberg.table.locations import load_location_provider
    from pyiceberg.typedef import Record

    from catchwater.log.tables.upkeep import described

    place = load_location_provider(table.location(), table.properties)
    output = table.io.new_output(place.new_data_location(name, key))
    schema = sanitize_column_names(table.schema())
    writer = ParquetFormatModel().create_writer(output, schema, table.properties)
    with writer:
        writer.write(rows)
    spec_id = table.spec().spec_id
    partition = key.partition if key else Record()
    return described(output.location, partition, len(output), spec_id, writer.result())


# --- what a table says ---------------------------------------------------------------------------


def table_state(table: "Table") -> TableState:
    """Where a table stands; see the module."""
    properties = table.properties
    rest: dict[str, Any] = {
        "topic_id": properties.get(TOPIC_ID, ""),
        "left_out": properties.get(LEFT_OUT) == "true",
        "gaps": tuple(map(tuple, msgspec.json.decode(properties.get(GAPS, "[]")))),
        "uniform": msgspec.json.decode(properties.get(UNIFORM, "null"), type=Uniform | None),
    }
    snapshot = current = table.current_snapshot()
    rest["snapshot_id"] = current.snapshot_id if current else None
    while snapshot is not None:
        said = snapshot.summary
        if said and (offsets := said[OFFSETS]):
            return TableState(_offsets(offsets), **rest, total=int(said[TOTAL] or 0))
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    # It was never written, or what said so has expired; then its children name no parent any more.
    kept = properties if current else {}
    return TableState(_offsets(kept.get(OFFSETS, "{}")), **rest, total=int(kept.get(TOTAL, "0")))


def _from(offsets: Mapping[int, int]) -> Any:
    """The rows at these offsets or after them."""
    return _any_of([f"partition = {p} and offset >= {at}" for p, at in offsets.items()])


def _within(spans: Mapping[int, tuple[int, int]]) -> Any:
    """The rows of these offsets."""
    return _any_of(
        [
            f"partition = {partition} and offset >= {first} and offset < {stop}"
            for partition, (first, stop) in spans.items()
        ]
    )


def _any_of(conditions: Sequence[str]) -> Any:
    from pyiceberg.expressions import AlwaysFalse

    return " or ".join(f"({each})" for each in conditions) if conditions else AlwaysFalse()


def _lies_in(table: "Table", file: "DataFile", spans: Mapping[int, tuple[int, int]]) -> bool:
    """Whether all rows of a file are of these offsets, as far as its statistics say."""
    partitions, offsets = (_bounds(table, file, name) for name in ("partition", "offset"))
    if partitions is None or offsets is None:
        return False
    return all(
        partition in spans
        and spans[partition][0] <= offsets[0]
        and offsets[1] < spans[partition][1]
        for partition in range(partitions[0], partitions[1] + 1)
    )


def _first_offset(table: "Table", file: "DataFile") -> int:
    """The first offset in a file of whichever partition, as far as its statistics say."""
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import LongType

    lowest = (file.lower_bounds or {}).get(_column_ids(table).get("offset", -1))
    return 0 if lowest is None else int(from_bytes(LongType(), lowest))


def _bounds(table: "Table", file: "DataFile", name: str) -> tuple[int, int] | None:
    from pyiceberg.conversions import from_bytes
    from pyiceberg.types import PrimitiveType

    column = table.schema().find_field(name)
    assert isinstance(column.field_type, PrimitiveType), "partitions and offsets are numbers"
    lowest = (file.lower_bounds or {}).get(column.field_id)
    highest = (file.upper_bounds or {}).get(column.field_id)
    if lowest is None or highest is None:
        return None
    values: list[Any] = [from_bytes(column.field_type, each) for each in (lowest, highest)]
    return values[0], values[1]


def _by_url(locations: Sequence[str], properties: Mapping[str, str]) -> list[str]:
    """Of files that pyiceberg reads and writes with these properties."""
    if all(each.startswith("file:///") for each in locations):
        return [*locations]
    if not all(each.startswith(_BUCKETS) for each in locations):
        raise TableUnfit(f"Files such as {locations[0]} can be read by engines only.")
    try:
        from catchwater.objects.s3 import signed_for_whole
    except ModuleNotFoundError as error:
        why = "The table's files lie in a bucket, and the broker has no package obstore."
        raise TableUnfit(why, hint="pip install 'catchwater[s3]' there.") from error
    settings = {ours: properties[name] for name, ours in _OF_BUCKETS if properties.get(name)}
    if endpoint := settings.get("endpoint") or s3_endpoint():
        settings["endpoint"] = endpoint
    places = [each.partition("://")[2].partition("/") for each in locations]
    by_bucket: dict[str, list[str]] = {}
    for bucket, _, key in places:
        by_bucket.setdefault(bucket, []).append(key)
    signed = {b: iter(signed_for_whole(b, keys, settings)) for b, keys in by_bucket.items()}
    return [next(signed[bucket]) for bucket, _, _ in places]


def _keeps_names(table: "Table", names: Sequence[str]) -> bool:
    """Whether these columns have been called so in every schema that the table ever had, and are
    called so in its files.
    """
    from pyiceberg.schema import sanitize_column_names

    ids = _column_ids(table)
    if sanitize_column_names(table.schema()) != table.schema():
        return False
    ours = {ids.get(name): name for name in names}
    return None not in ours and all(
        field.field_id not in ours or ours[field.field_id] == field.name
        for schema in table.schemas().values()
        for field in schema.fields
    )


def _counts(table: "Table") -> tuple[int, int]:
    """How many files there are with rows, and with deletes."""
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot else None
    names = ("total-data-files", "total-delete-files")
    data, deletes = (int((summary and summary[name]) or 0) for name in names)
    return data, deletes


def _offsets(text: str) -> dict[int, int]:
    return msgspec.json.decode(text, type=dict[int, int])


def _ancestors(table: "Table") -> Iterator["Snapshot"]:
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None


def _has_commit(table: "Table", token: str) -> bool:
    return any(each.summary and each.summary[COMMIT] == token for each in _ancestors(table))


def _column_ids(table: "Table") -> dict[str, int]:
    return msgspec.json.decode(table.properties.get(COLUMNS, "{}"), type=dict[str, int])


def _fits(table: "Table", field: pa.Field) -> bool:
    """Whether the table can take the column, perhaps as a new or a wider one."""
    from pyiceberg.exceptions import ResolveError, ValidationError

    try:
        table.update_schema().union_by_name(pa.schema([field]))  # not committed
    except (ValidationError, ResolveError, ValueError):
        return False
    return True


def _follow(change: Any, settings: TableSettings) -> None:
    """Have what is written from now on partitioned as the topic says."""
    from pyiceberg.transforms import parse_transform

    there = {field.name: field for field in change.table_metadata.spec().fields}
    wanted = {each.name: each for each in settings.partition_by}
    if list(there) == list(wanted):
        return
    columns = change.table_metadata.schema().column_names
    for each in settings.partition_by:
        if each.column not in columns:
            raise TableRefused(
                f"catchwater.table.partition.by names {each.column}, which is no column of "
                f"{settings.name}: it has {', '.join(columns)}.",
                hint="Name a column, or leave the setting out.",
            )
    with change.update_spec() as update:
        for name in there:
            if name not in wanted:
                update.remove_field(name)
        for name, each in wanted.items():
            if name not in there:
                text = f"{each.transform}[{each.number}]" if each.number else each.transform
                update.add_field(each.column, parse_transform(text), name)


def _conflict() -> type[Exception]:
    from pyiceberg.exceptions import CommitFailedException

    return CommitFailedException


def _contended(name: str) -> TableUnavailable:
    return TableUnavailable(
        f"Others have changed the table {name} {_TRIES} times while it was being committed to.",
        hint="It is tried again; is something else writing to it without a pause?",
    )


@contextmanager
def _named(table: str) -> Iterator[None]:
    """Turn errors of the catalog and the files into ours."""
    from pyiceberg import exceptions
    from sqlalchemy.exc import SQLAlchemyError

    theirs = tuple(
        each
        for each in vars(exceptions).values()
        if isinstance(each, type) and issubclass(each, Exception)
    )
    try:
        yield
    except exceptions.NoSuchTableError as error:
        raise TableUnavailable(f"The table {table} is gone: {error}.") from error
    except (
        exceptions.UnauthorizedError,
        exceptions.ForbiddenError,
        exceptions.OAuthError,
    ) as error:
        raise TableUnavailable(
            f"The catalog of the table {table} does not let us in: {error}.",
            hint="Are the properties catchwater.tables.catalog.* those of a user who may write?",
        ) from error
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        why = "cannot grow" if is_full else "is out of reach"
        raise TableUnavailable(f"The table {table} {why}: {error}.") from error
    except (*theirs, SQLAlchemyError, pa.ArrowException, ValueError, LookupError) as error:
        # Whatever is wrong with it: the broker's other work goes on, and the log keeps the records.
        raise TableUnavailable(
            f"The table {table} can be neither read nor written: {type(error).__name__}: {error}."
        ) from error
