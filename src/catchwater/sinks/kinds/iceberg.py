"""Iceberg: rows of a table; an epoch is one snapshot, and its mark goes with it.

The driver writes the staged outputs of an epoch as one Parquet file (one for each partition of the
table) and commits it with the table property `catchwater.marks` in one change of the table's
metadata; the snapshot's summary has the same mark, for people. An epoch without outputs only
changes the property. Properties outlive the expiry of snapshots.

The catalog compares and swaps: if another commit comes first, ours fails, the table is loaded again
and its mark is checked before a retry. This also covers a commit whose reply was lost. Every
snapshot makes the next commit slower, so only our newest ones are kept; snapshots of others, and
those that a branch or tag names, are never expired. Relies on pyiceberg (the extra `iceberg`). The
table's owner is responsible for compaction.
"""

import errno
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from catchwater.clock import SYSTEM, Clock
from catchwater.config import ConfigError
from catchwater.objects.local import make_folders
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    Fix,
    NotAdmitted,
    OutputRecord,
    RowId,
    SinkFull,
    SinkRow,
    SinkUnavailable,
    Staged,
    StagedRow,
    TargetDiffers,
    TargetState,
    patiently,
)
from catchwater.sinks.columns import ROW_COLUMNS
from catchwater.sinks.config import (
    RETRY,
    RETRY_MS,
    Guarantee,
    Kind,
    SinkConfig,
    count,
    duration,
    option,
    options,
    text,
    without_secrets,
)
from catchwater.sinks.epochs import Mark, Marks, Owner, decode_marks
from catchwater.sinks.kinds.parquet import check_columns, files_guarantee

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from catchwater.sinks.arrow_columns import Columns
    from catchwater.sinks.config import SinkContext
    from catchwater.sinks.epochs import Archive, StagedFile

MARKS_PROPERTY = "catchwater.marks"

_EPOCH = ROW_COLUMNS[0]
_OURS = "catchwater."
_NEW_TABLE = {
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}
"""Every epoch adds a file and a version of the metadata, so both lists are bounded."""

T = TypeVar("T")


class IcebergSink:
    """See `base.Sink`."""

    def __init__(
        self,
        catalog: "Catalog",
        table: str,
        columns: "Columns",
        truth: "Archive",
        *,
        owner: Owner,
        snapshots: int = 30,
        retry_ms: int = 60_000,
        clock: Clock = SYSTEM,
    ) -> None:
        """Create the table, or add missing columns.

        Raises `TargetTaken`, and `TargetDiffers` where it cannot take the outputs.
        """
        self.name = owner.sink
        self.retracts = False  # rows have no column for a retraction
        self.truth = truth
        self._catalog = catalog
        self._table = table
        self._columns = columns
        self._owner = owner
        self._most = snapshots
        self._unexpired: int | None = None
        """How many snapshots are ours; None until they are counted."""
        self._retry_ms = retry_ms
        self._clock = clock
        self._oldest = 0
        self._patiently(self._prepare)

    def stager(self) -> "StagedFile":
        return self.truth.stager()

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        """Add the epoch's rows in one snapshot, once."""
        pieces = sorted(staged, key=lambda piece: piece.shard)
        mark = Mark.of(epoch, self._owner.generation, pieces)
        found = self._patiently(lambda: self._commit(mark, pieces))
        return found.sink_epoch(self._table)

    def last_epoch(self) -> int | None:
        """The newest epoch in the table's property."""
        return self._patiently(lambda: self._marks(self._load()).newest)

    def withdraw(self, after: int) -> None:
        """Delete the rows of epochs after this one, once for each generation."""
        if self._patiently(lambda: self._withdraw(after)):
            self.truth.withdraw(after)

    def identity(self, record: OutputRecord) -> None:
        """None: rows are only appended."""
        return None

    def digest(self, record: OutputRecord) -> bytes:
        """Over the record's columns."""
        return self._columns.digest(record)

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        """The table's rows; an unreadable data file counts as empty."""
        with _named(self._table):
            table = self._load()
            where = f"{_EPOCH} >= {first} and {_EPOCH} <= {last}"
            for found in self._read(table, where):
                yield from self._columns.rows_of(found)

    def repair(self, fixes: Iterable[Fix]) -> list[Fix]:
        """Overwrite each epoch, with these rows corrected."""
        by_epoch: dict[int, dict[RowId, Fix]] = defaultdict(dict)
        for fix in fixes:
            by_epoch[fix.id.epoch][fix.id] = fix
        for epoch, wanted in sorted(by_epoch.items()):
            self._patiently(lambda e=epoch, w=wanted: self._mend(e, w))  # type: ignore[misc]
        return []

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Drop marks and staged pieces before this epoch, and from time to time old snapshots."""
        self._oldest = oldest
        self.truth.sweep(oldest, now_ms)
        if self._unexpired is None or self._unexpired >= 2 * self._most:
            self._unexpired = self._patiently(self._expire)

    def close(self) -> None:
        self._catalog.close()

    def _prepare(self) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        try:
            table = self._catalog.load_table(self._table)
        except NoSuchTableError:
            self._catalog.create_namespace_if_not_exists(self._table.rpartition(".")[0])
            table = self._catalog.create_table_if_not_exists(
                self._table, self._columns.schema, properties=_NEW_TABLE
            )
        marks = self._marks(table)
        self._fit(table)
        if marks.claim is not None:
            table = self._load()
            with table.transaction() as change:
                marks = self._marks(table)
                change.set_properties({MARKS_PROPERTY: marks.encode().decode()})

    def _fit(self, table: "Table") -> None:
        """Add missing columns; refuse outputs that the table cannot take."""
        check_fits(table, self._table, self._columns)
        with _altered(self._table), table.update_schema() as update:
            update.union_by_name(self._columns.schema)

    def _load(self) -> "Table":
        """The table as it is now, with transactions that pyiceberg does not retry.

        After a conflict pyiceberg would add the same files to the table as it is by then; the mark
        has to be read again first. Only this copy of the metadata is changed.
        """
        table = self._catalog.load_table(self._table)
        table.metadata.properties["commit.retry.num-retries"] = "0"
        return table

    def _marks(self, table: "Table") -> Marks:
        kept = table.properties.get(MARKS_PROPERTY)
        if kept is None:
            return Marks.none(self._owner).claimed(self._owner)
        found = decode_marks(kept, f"the table {self._table}")
        found.owned_by(self._owner, f"The table {self._table}")
        return found.claimed(self._owner)

    def _commit(self, mark: Mark, pieces: list[Staged]) -> Mark:
        table = self._load()
        marks = self._marks(table)
        found = marks.admit(mark)
        if found is not None:
            return found
        self.truth.record(mark.epoch, pieces, self._clock.now_ms())
        with table.transaction() as change:
            if mark.records:
                rows = self._columns.table(self.truth.rows(mark.epoch))
                with _altered(self._table):
                    change.append(rows, snapshot_properties=self._summary(mark))
            kept = marks.written(mark, self._oldest).encode().decode()
            change.set_properties({MARKS_PROPERTY: kept})
        if self._unexpired is not None:
            self._unexpired += bool(mark.records)
        return mark

    def _expire(self) -> int:
        """Expire the oldest snapshots of ours; how many are left. Their data stays."""
        table = self._load()
        named = {ref.snapshot_id for ref in table.refs().values()}
        ours = [s for s in table.snapshots() if s.summary and s.summary[f"{_OURS}epoch"]]
        old = [s for s in ours[: -self._most] if s.snapshot_id not in named]
        if old:
            ids = [snapshot.snapshot_id for snapshot in old]
            table.maintenance.expire_snapshots().by_ids(ids).commit()
        for snapshot in old:
            table.io.delete(snapshot.manifest_list)
        return len(ours) - len(old)

    def _withdraw(self, after: int) -> bool:
        table = self._load()
        before = self._marks(table)
        marks, _ = before.withdrawn(after, self._owner.generation)
        if before.generation == self._owner.generation:
            return False  # all rows are this generation's own
        with table.transaction() as change:
            where = f"{_EPOCH} > {after}"
            if any(True for _ in table.scan(row_filter=where).plan_files()):
                summary = {f"{_OURS}withdrawn-after": str(after)}
                change.delete(where, snapshot_properties=summary)
            change.set_properties({MARKS_PROPERTY: marks.encode().decode()})
        return True

    def _mend(self, epoch: int, fixes: Mapping[RowId, Fix]) -> None:
        import pyarrow as pa

        table = self._load()
        where = f"{_EPOCH} = {epoch}"
        added = self._columns.table(
            StagedRow(fix.id, fix.record) for fix in fixes.values() if fix.record is not None
        )
        tables = [added]
        for found in self._read(table, where):
            keep = [row.id not in fixes for row in self._columns.rows_of(found)]
            tables.append(found.filter(pa.array(keep, pa.bool_())).cast(added.schema))
        merged = pa.concat_tables(tables).sort_by([(name, "ascending") for name in ROW_COLUMNS])
        summary = {f"{_OURS}repaired-epoch": str(epoch)}
        with table.transaction() as change:
            if any(True for _ in table.scan(row_filter=where).plan_files()):
                change.delete(where, snapshot_properties=summary)
            if merged.num_rows:
                change.append(merged, snapshot_properties=summary)

    def _read(self, table: "Table", where: str) -> Iterator[Any]:
        """The rows of each data file that has some of these, in our columns."""
        import pyarrow as pa
        from pyiceberg.io.pyarrow import ArrowScan

        names = [name for name in self._columns.schema.names if name in table.schema().column_names]
        scan = table.scan(row_filter=where, selected_fields=tuple(names))
        for task in scan.plan_files():
            reader = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
            try:
                yield reader.to_table([task])
            except (OSError, pa.ArrowInvalid):
                continue

    def _summary(self, mark: Mark) -> dict[str, str]:
        said = {
            "pipeline": self._owner.pipeline,
            "sink": self.name,
            "generation": str(mark.generation),
            "epoch": str(mark.epoch),
            "records": str(mark.records),
            "checksum": mark.checksum,
        }
        return {f"{_OURS}{name}": value for name, value in said.items()}

    def _patiently(self, call: Callable[[], T]) -> T:
        def named() -> T:
            with _named(self._table):
                return call()

        return patiently(named, self._clock, self._retry_ms)


def check_fits(table: "Table", name: str, columns: "Columns") -> None:
    """Raise `TargetDiffers` unless the table can take the outputs, perhaps with new columns."""
    extra = [
        field.name
        for field in table.schema().fields
        if field.required and field.name not in columns.schema.names
    ]
    if extra:
        raise TargetDiffers(
            f"The table {name} requires the column {extra[0]}, which is no field of the output.",
            hint="Make the column optional, or write to another table.",
        )
    with _altered(name):
        table.update_schema().union_by_name(columns.schema)  # not committed


@contextmanager
def _altered(table: str) -> Iterator[None]:
    from pyiceberg.exceptions import ValidationError

    try:
        yield
    except (ValidationError, ValueError) as error:
        raise TargetDiffers(
            f"The table {table} cannot take the outputs: {error}.",
            hint="Start the pipeline again if a column was dropped meanwhile: it is made anew. "
            "Otherwise give the output's field another name, or write to another table.",
        ) from error


@contextmanager
def _named(table: str) -> Iterator[None]:
    """Turn errors of the catalog and the files into ours."""
    from pyiceberg.exceptions import (
        CommitFailedException,
        ForbiddenError,
        NoSuchNamespaceError,
        NoSuchTableError,
        OAuthError,
        RESTError,
        UnauthorizedError,
    )
    from sqlalchemy.exc import DatabaseError, OperationalError

    try:
        yield
    except CommitFailedException as error:
        raise SinkUnavailable(
            f"Another writer changed the table {table} at the same time: {error}."
        ) from error
    except (NoSuchTableError, NoSuchNamespaceError) as error:
        raise TargetDiffers(
            f"The table {table} is gone: {error}.",
            hint="Restore it, or start the pipeline again: it makes the table anew, and what "
            "it held comes back by catchwater sink repair, as far as that is kept.",
        ) from error
    except (UnauthorizedError, ForbiddenError, OAuthError) as error:
        raise NotAdmitted(
            f"The catalog of the table {table} does not let us in: {error}.",
            hint="Are catalog.token, or catalog.credential, those of a user who may write?",
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SinkFull(
                f"The table {table} cannot grow: {error}.",
                hint="Free some space and start the pipeline again; the epoch runs again.",
            ) from error
        raise SinkUnavailable(f"The table {table} is out of reach: {error}.") from error
    except (RESTError, OperationalError) as error:
        raise SinkUnavailable(f"The table {table} is out of reach: {error}.") from error
    except DatabaseError as error:
        raise TargetDiffers(
            f"The catalog of the table {table} cannot be read: {error.orig}.",
            hint="Restore it from a copy, or name another warehouse.",
        ) from error


# The declaration


def _table_in_namespace(value: str) -> str:
    if "." not in value.strip("."):
        raise ValueError('a table\'s name with its namespace, such as "lake.alerts"')
    return value


@dataclass(frozen=True)
class IcebergOptions:
    """The keys of an Iceberg sink."""

    table: str = option(_table_in_namespace, doc="the table, which is made if it is missing")
    warehouse: str = option(text, "", doc="where tables lie; a folder that holds the catalog, too")
    snapshots: int = option(count, 30, doc="how many of its own are kept")
    retry_ms: int = option(duration, RETRY_MS, key="retry", doc=RETRY)
    catalog: Mapping[str, str] = options(text, key="catalog.*", doc="pyiceberg's properties")

    def folder(self, base: Path) -> Path | None:
        """The folder that holds tables and catalog, where no catalog is named."""
        if not self.warehouse or "://" in self.warehouse or "catalog.uri" in self.catalog:
            return None
        return (base / self.warehouse).absolute()

    def properties(self, base: Path) -> dict[str, str | None]:
        """Of the catalog: without any, it is a SQLite file in the warehouse."""
        given: dict[str, str | None] = {
            key.removeprefix("catalog."): value for key, value in self.catalog.items()
        }
        warehouse = self.warehouse
        if warehouse and "://" not in warehouse:
            warehouse = (base / warehouse).absolute().as_uri()
            if (folder := self.folder(base)) is not None:
                given |= {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db"}
        return given | ({"warehouse": warehouse} if warehouse else {})


def _check_options(options: IcebergOptions) -> None:
    if not options.warehouse and not options.catalog:
        raise ConfigError(
            "names no catalog.",
            hint='Set catalog.uri and what else pyiceberg needs, or warehouse = "folder".',
        )


def _guarantee(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    return files_guarantee(
        config, "an epoch is one snapshot; its mark is a property changed in the same commit"
    )


_PLACES = (
    "catalog.prefix", "catalog.glue.id", "catalog.glue.region", "catalog.dynamodb.region",
    "catalog.dynamodb.table-name",
)  # fmt: skip
"""Properties that identify a catalog; all others may be secrets."""


def _target(config: SinkConfig, folder: Path) -> str:
    """Its catalog's address and the table's name, or those of the warehouse that the catalog is."""
    options: IcebergOptions = config.options
    warehouse = options.warehouse
    if warehouse and "://" not in warehouse:
        warehouse = (folder / warehouse).resolve().as_uri()
    named = [options.catalog.get(f"catalog.{k}", "") for k in ("type", "name", "uri", "warehouse")]
    named += [value for key, value in sorted(options.catalog.items()) if key in _PLACES]
    return " ".join(filter(None, [*map(without_secrets, [*named, warehouse]), options.table]))


def _catalog(config: SinkConfig, context: "SinkContext") -> "Catalog":
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError

    from catchwater.objects.table_files import SYNCED

    try:
        return load_catalog(**SYNCED | config.options.properties(context.folder))
    except (ValueError, NotInstalledError) as error:
        raise ConfigError(
            f"The catalog of [sink.{config.name}] cannot be opened: {error}.",
            hint="The keys under catalog. are the properties of a pyiceberg catalog.",
        ) from error


def _open(config: SinkConfig, context: "SinkContext", truth: "Archive") -> IcebergSink:
    from catchwater.sinks.arrow_columns import Columns

    options: IcebergOptions = config.options

    def catalog() -> "Catalog":
        if (folder := options.folder(context.folder)) is not None:
            make_folders(folder)
        with _named(options.table):
            return _catalog(config, context)

    return IcebergSink(
        patiently(catalog, context.clock, options.retry_ms),
        options.table,
        Columns(context.output_type),
        truth,
        owner=context.owner(config.name),
        snapshots=options.snapshots,
        retry_ms=options.retry_ms,
        clock=context.clock,
    )


def _look(config: SinkConfig, context: "SinkContext") -> TargetState:
    """See `Kind.look`; missing columns are no difference, because opening adds them."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    from catchwater.sinks.arrow_columns import Columns

    name: str = config.options.table
    folder = config.options.folder(context.folder)
    if folder is not None and not (folder / "catalog.db").exists():
        return TargetState()
    with _named(name), closing(_catalog(config, context)) as catalog:
        try:
            table = catalog.load_table(name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return TargetState()
        kept, newest = table.properties.get(MARKS_PROPERTY), None
        if kept is not None:
            marks = decode_marks(kept, f"the table {name}")
            marks.owned_by(context.owner(config.name), f"The table {name}")
            newest = marks.newest
        try:
            check_fits(table, name, Columns(context.output_type))
        except TargetDiffers as differs:
            return TargetState(kept is not None, newest, differs)
        return TargetState(kept is not None, newest)


KIND = Kind(
    name="iceberg",
    options=IcebergOptions,
    check_options=_check_options,
    guarantee=_guarantee,
    target=_target,
    place=lambda options: f"{options.warehouse} {options.table}".strip(),
    named_by="table",
    check=check_columns,
    open=_open,
    look=_look,
    modules=(
        "catchwater.objects.table_files",
        "catchwater.sinks.arrow_columns",
        "pyiceberg.catalog",
        "pyiceberg.io.pyarrow",
        "sqlalchemy.exc",
    ),
    extra="iceberg",
    one_writer=True,
)
