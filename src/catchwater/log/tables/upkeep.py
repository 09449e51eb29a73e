"""What becomes of a table's files after they were written: rows that give way to newer ones, small
files that are made one, and files that no snapshot names any more.

A row gives way by a *position delete*: a file that names another file and the rows of it that are
gone, which PyIceberg, Spark, Trino and DuckDB all read. pyiceberg reads such files and writes none,
so a snapshot that has them is made here (`Change`); one that only merges files says that no row was
changed (the operation `replace`), which readers of what is new pass over.

Merging never changes a row, and a row is rewritten about as often as its table has doubled since.
Everything blocks. Relies on pyiceberg, also on what it calls its own.
"""

import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import ParquetFormatModel, _read_deletes
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import sanitize_column_names
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update.snapshot import _ManifestMergeManager, _OverwriteFiles
from pyiceberg.utils.concurrent import ExecutorFactory

from catchwater.log.tables.rows import TOMBSTONE

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import FileScanTask, Table, Transaction

MERGE_LEAST = 10
"""So many files are worth making one."""
MERGED_BYTES = 64 * 1024 * 1024
"""The largest that is made of others."""
_ALWAYS = 4
"""So many of the smallest are taken whatever their sizes."""
_MANIFEST_BYTES, _MOST_MANIFESTS = 8 * 1024 * 1024, 100
"""As pyiceberg merges those of its appends."""
_ROWS = 64 * 1024
"""Read in one go where a file is read whole."""

_PATH_ID, _POSITION_ID = 2147483546, 2147483545
_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": str(_PATH_ID)}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": str(_POSITION_ID)}),
    ]
)

Gone = Mapping[str, pa.Array]
"""By a file's path: the positions of the rows in it that were deleted."""


class Columns(NamedTuple):
    """The ids in the table of the columns that say where a row lies and what its key is."""

    partition: int
    offset: int
    key: int


# --- one snapshot --------------------------------------------------------------------------------


class _DeletesWriter(ManifestWriterV2):
    """A manifest of files with deletes."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class Change(_OverwriteFiles):
    """A snapshot that adds and removes data files and files with deletes of rows."""

    def __init__(
        self,
        transaction: "Transaction",
        io: "FileIO",
        said: dict[str, str],
        *,
        merges: bool = False,
    ) -> None:
        is_first = transaction.table_metadata.current_snapshot() is None
        operation = Operation.APPEND if is_first else Operation.OVERWRITE
        super().__init__(operation, transaction, io, snapshot_properties=said)
        self._merges = merges
        self._added_deletes: list[DataFile] = []
        self._gone_deletes: dict[str, DataFile] = {}

    def add(self, files: Iterable[DataFile]) -> None:
        """Files that are the table's from now on."""
        for file in files:
            if file.content == DataFileContent.DATA:
                self.append_data_file(file)
            else:
                self._added_deletes.append(file)

    def drop(self, files: Iterable[DataFile]) -> None:
        """Files that are the table's no more."""
        for file in files:
            if file.content == DataFileContent.DATA:
                self.delete_data_file(file)
            else:
                self._gone_deletes[file.file_path] = file

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        deletes = [each for each in manifests if each.content == ManifestContent.DELETES]
        data = [each for each in manifests if each.content == ManifestContent.DATA]
        merge = _ManifestMergeManager(_MANIFEST_BYTES, _MOST_MANIFESTS, True, self)
        return merge.merge_manifests(data) + deletes

    def _manifests(self) -> list[ManifestFile]:
        made = super()._manifests()
        for spec_id in sorted({file.spec_id for file in self._added_deletes}):
            entries = [
                self._entry(ManifestEntryStatus.ADDED, file, self.snapshot_id)
                for file in self._added_deletes
                if file.spec_id == spec_id
            ]
            made.append(self._of_deletes(spec_id, entries))
        return made

    def _existing_manifests(self) -> list[ManifestFile]:
        return [
            self._without_gone(each)
            for each in super()._existing_manifests()
            if each.has_added_files() or each.has_existing_files()
        ]

    def _without_gone(self, manifest: ManifestFile) -> ManifestFile:
        if manifest.content != ManifestContent.DELETES or not self._gone_deletes:
            return manifest
        found = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
        if not any(each.data_file.file_path in self._gone_deletes for each in found):
            return manifest
        entries = []
        for each in found:
            is_gone = each.data_file.file_path in self._gone_deletes
            status = ManifestEntryStatus.DELETED if is_gone else ManifestEntryStatus.EXISTING
            of = self.snapshot_id if is_gone else each.snapshot_id
            entries.append(self._entry(status, each.data_file, of, each))
        return self._of_deletes(manifest.partition_spec_id, entries)

    def _entry(
        self,
        status: ManifestEntryStatus,
        file: DataFile,
        snapshot_id: int | None,
        before: ManifestEntry | None = None,
    ) -> ManifestEntry:
        return ManifestEntry.from_args(
            status=status,
            snapshot_id=snapshot_id,
            sequence_number=before.sequence_number if before else None,
            file_sequence_number=before.file_sequence_number if before else None,
            data_file=file,
        )

    def _of_deletes(self, spec_id: int, entries: Sequence[ManifestEntry]) -> ManifestFile:
        with _DeletesWriter(
            self.spec(spec_id), self.schema(), self.new_manifest_output(), self.snapshot_id,
            self._compression,
        ) as writer:  # fmt: skip
            for entry in entries:
                writer.add_entry(entry)
        return writer.to_manifest_file()

    def _summary(self, snapshot_properties: dict[str, str] = {}) -> Summary:  # noqa: B006
        added, gone = self._added_data_files, self._deleted_data_files
        self._added_data_files = [*added, *self._added_deletes]
        self._deleted_data_files = {*gone, *self._gone_deletes.values()}
        try:
            found = super()._summary(snapshot_properties)
        finally:
            self._added_data_files, self._deleted_data_files = added, gone
        if self._merges:
            # Which pyiceberg reads and does not write.
            return Summary(Operation.REPLACE, **found.additional_properties)
        return found


# --- rows that give way --------------------------------------------------------------------------


def newest_of(rows: pa.Table) -> pa.Table:
    """By partition and key the last offset, of rows with these columns; rows without a key not."""
    keyed = _binary_keys(rows.select(["partition", "key", "offset"]))
    keyed = keyed.filter(pc.field("key").is_valid())
    found = keyed.group_by(["partition", "key"]).aggregate([("offset", "max")])
    return found.rename_columns(["partition", "key", "newest"])


def newest_rows(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """What `newest_of` makes of the rows; and those of them that stay: the last of each key unless
    it is a tombstone (`TOMBSTONE`, a column that goes), and all without a key.
    """
    newest = newest_of(rows)
    places = _binary_keys(rows.select(["partition", "key", "offset"]))
    places = places.append_column("at", pa.array(np.arange(len(rows))))
    found = places.join(newest, ["partition", "key"], join_type="inner")
    last = found.filter(pc.equal(found.column("offset"), found.column("newest"))).column("at")
    keyless = places.filter(pc.field("key").is_null()).column("at")
    at = pa.chunked_array([*last.chunks, *keyless.chunks], pa.int64()).combine_chunks().sort()
    kept = rows.combine_chunks().take(at)
    return newest, kept.filter(pc.invert(kept.column(TOMBSTONE))).drop_columns([TOMBSTONE])


def joined(parts: Sequence[pa.Table]) -> pa.Table:
    """Several of `newest_of` as one."""
    rows = pa.concat_tables(parts)
    return newest_of(rows.rename_columns(["partition", "key", "offset"]))


def _binary_keys(rows: pa.Table) -> pa.Table:
    at = rows.schema.get_field_index("key")
    return rows.set_column(at, "key", rows.column("key").cast(pa.binary()))


def superseded(
    io: "FileIO", files: Iterable[DataFile], newest: pa.Table, columns: Columns
) -> Iterator[tuple[DataFile, pa.Array]]:
    """By file the positions of the rows that give way to a later one of their partition and key.

    `newest` as `newest_of` makes it.
    """
    if not len(newest):
        return
    ends = pc.min_max(newest.column("key")).as_py()
    for file in files:
        if not _may_have(file, columns.key, ends["min"], ends["max"]):
            continue
        rows = _places(io, file, columns)
        found = rows.join(newest, ["partition", "key"], join_type="inner")
        older = found.filter(pc.less(found.column("offset"), found.column("newest")))
        if len(older):
            yield file, older.column("pos").combine_chunks().sort()


def _may_have(file: DataFile, key_id: int, lowest: bytes, highest: bytes) -> bool:
    low, high = (file.lower_bounds or {}).get(key_id), (file.upper_bounds or {}).get(key_id)
    return (low is None or low <= highest) and (high is None or lowest <= high)


def _places(io: "FileIO", file: DataFile, columns: Columns) -> pa.Table:
    """Of every row: `partition`, `offset`, `key`, and `pos`, where it is in the file."""
    with io.new_input(file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        names = _names_by_id(parquet.schema_arrow)
        rows = parquet.read([names[each] for each in columns])
        rows = rows.select([names[each] for each in columns]).rename_columns(columns._fields)
    return _binary_keys(rows).append_column("pos", pa.array(np.arange(len(rows))))


def _names_by_id(schema: pa.Schema) -> dict[int, str]:
    return {int((each.metadata or {})[b"PARQUET:field_id"]): each.name for each in schema}


def deletes_of(table: "Table") -> list[tuple[DataFile, Gone]]:
    """The table's files with deletes, also those that no row is left for, and what they say."""
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot else None
    if snapshot is None or not int((summary and summary["total-delete-files"]) or 0):
        return []
    return [
        (entry.data_file, _read_deletes(table.io, entry.data_file))
        for manifest in snapshot.manifests(table.io)
        if manifest.content == ManifestContent.DELETES
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    ]


def gone_by(deletes: Iterable[tuple[DataFile, Gone]]) -> Gone:
    """All that these files say."""
    found: dict[str, list[pa.Array]] = {}
    for _, gone in deletes:
        for path, positions in gone.items():
            found.setdefault(path, []).extend(pa.chunked_array(positions).chunks)
    return {
        path: pa.chunked_array(arrays).cast(pa.int64()).unique() for path, arrays in found.items()
    }


def still_there(positions: pa.Array, path: str, gone: Gone) -> pa.Array:
    """Those of a file's positions that were not deleted before."""
    if path not in gone:
        return positions
    return positions.filter(pc.invert(pc.is_in(positions, value_set=gone[path])))


def write_deletes(
    table: "Table", found: Iterable[tuple[DataFile, pa.Array]], name: str
) -> list[DataFile]:
    """Files that delete these rows: one for each of the table's partitions that has some."""
    groups: dict[tuple[int, Any], list[tuple[DataFile, pa.Array]]] = {}
    for file, positions in found:
        if len(positions):
            groups.setdefault((file.spec_id, file.partition), []).append((file, positions))
    written = []
    for index, ((spec_id, partition), group) in enumerate(groups.items()):
        group.sort(key=lambda each: each[0].file_path)
        paths = [path.file_path for path, positions in group for _ in range(len(positions))]
        rows = pa.Table.from_arrays(
            [pa.array(paths, pa.string()), pa.chunked_array([each for _, each in group])],
            schema=_DELETES,
        )
        place = load_location_provider(table.location(), table.properties)
        output = table.io.new_output(place.new_data_location(f"{name}-{index:05d}-deletes.parquet"))
        with output.create(overwrite=True) as stream:
            pq.write_table(rows, stream, compression="zstd")
        file = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=output.location,
            file_format=FileFormat.PARQUET,
            partition=partition,
            record_count=len(rows),
            file_size_in_bytes=len(output),
            lower_bounds={_PATH_ID: paths[0].encode()},
            upper_bounds={_PATH_ID: paths[-1].encode()},
        )
        file.spec_id = spec_id
        written.append(file)
    return written


# --- files that are made one ---------------------------------------------------------------------


def to_merge(sizes: Sequence[int]) -> list[int]:
    """Which files, by their sizes, are made one: their indexes; none where it is not worth it.

    A file joins only smaller ones that are together as large, so that the bytes that are rewritten
    stay in proportion to those that have come. Pure.
    """
    taken: list[int] = []
    total = 0
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        size = sizes[index]
        if total + size > MERGED_BYTES or (len(taken) >= _ALWAYS and size > total):
            break
        taken.append(index)
        total += size
    return taken if len(taken) >= MERGE_LEAST else []


def groups_to_merge(
    tasks: Iterable["FileScanTask"], spec_id: int, gone: Gone
) -> list[list["FileScanTask"]]:
    """The files that are made one, for each of the table's partitions. A file that has lost half of
    its rows counts as if they alone were in it, and is made anew even by itself.
    """
    parts: dict[Any, list[FileScanTask]] = {}
    for task in tasks:
        # What is partitioned as it was before stays as it is.
        if task.file.spec_id == spec_id:
            parts.setdefault(task.file.partition, []).append(task)
    found = []
    for group in parts.values():
        lost = [len(gone.get(each.file.file_path, ())) for each in group]
        left = [
            each.file.file_size_in_bytes
            * (each.file.record_count - less)
            // max(each.file.record_count, 1)
            for each, less in zip(group, lost, strict=True)
        ]
        wanted = {*to_merge(left)}
        wanted |= {i for i, less in enumerate(lost) if 2 * less >= group[i].file.record_count}
        if wanted:
            found.append([group[index] for index in sorted(wanted)])
    return found


def merged(
    table: "Table",
    tasks: Sequence["FileScanTask"],
    gone: Gone,
    name: str,
    fit: Callable[[pa.Table], pa.Table],
    step: Callable[[], None],
) -> DataFile | None:
    """One file with the rows of these in their order, which are of one partition of the table;
    None: no row is left. It lies beside the first of them.

    `fit` puts rows into the columns that the table has now, `step` is called between pieces of the
    work; after an error the file is gone.
    """
    first = tasks[0].file
    output = table.io.new_output(posixpath.join(posixpath.dirname(first.file_path), name))
    schema = sanitize_column_names(table.schema())
    writer = ParquetFormatModel().create_writer(output, schema, table.properties)
    count = 0
    with ExitStack() as undo:
        undo.callback(delete, table.io, [output.location])
        undo.callback(_close, writer)
        for task in tasks:
            for rows in pieces(table, task.file, gone):
                if len(rows):
                    writer.write(fit(rows))
                    count += len(rows)
                step()
        if count:
            undo.pop_all()
    if not count:
        return None
    statistics = writer.close()
    return described(output.location, first.partition, len(output), first.spec_id, statistics)


def _close(writer: Any) -> None:
    """Close a file that is not wanted."""
    with suppress(OSError, ValueError):  # it may never have been opened
        writer.close()


def described(path: str, partition: Any, size: int, spec_id: int, statistics: Any) -> DataFile:
    """A data file as a snapshot takes it."""
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=partition,
        file_size_in_bytes=size,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    file.spec_id = spec_id
    return file


def pieces(table: "Table", file: DataFile, gone: Gone) -> Iterator[pa.Table]:
    """The rows of a file that are still there, in columns as the table calls them now."""
    now = {field.field_id: field.name for field in table.schema().fields}
    left = gone.get(file.file_path)
    with table.io.new_input(file.file_path).open() as stream:
        parquet = pq.ParquetFile(stream)
        by_id = _names_by_id(parquet.schema_arrow)
        known = {id: name for id, name in by_id.items() if id in now}
        at = 0
        for batch in parquet.iter_batches(_ROWS, columns=[*known.values()]):
            rows = pa.Table.from_batches([batch]).select([*known.values()])
            rows = rows.rename_columns([now[id] for id in known])
            if left is not None:
                there = pa.array(np.arange(at, at + len(rows)))
                rows = rows.filter(pc.invert(pc.is_in(there, value_set=left)))
            at += batch.num_rows
            yield rows


# --- what no snapshot names ----------------------------------------------------------------------


def unnamed(table: "Table", expired: Iterable[Snapshot]) -> list[str]:
    """The files that only these snapshots name, which the table has no more."""
    manifests: dict[str, ManifestFile] = {}
    lists = []
    for snapshot in expired:
        lists.append(snapshot.manifest_list)
        manifests |= {each.manifest_path: each for each in snapshot.manifests(table.io)}
    kept: dict[str, ManifestFile] = {}
    read = ExecutorFactory.get_or_create().map  # far away, one after the other takes long
    for found in read(lambda snapshot: snapshot.manifests(table.io), table.snapshots()):
        kept |= {each.manifest_path: each for each in found}
    gone = [manifests[path] for path in manifests.keys() - kept.keys()]
    files = _files_of(table, gone)
    if files:
        files -= _files_of(table, kept.values())
    return [*files, *(each.manifest_path for each in gone), *lists]


def _files_of(table: "Table", manifests: Iterable[ManifestFile]) -> set[str]:
    return {
        entry.data_file.file_path
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def delete(io: "FileIO", paths: Iterable[str]) -> None:
    """Delete files that nobody names, as far as that can be done."""
    for path in paths:
        with suppress(OSError):
            io.delete(path)
