"""Parquet: files below a URL, for readers without any knowledge of Catchwater.

    epoch-00000000000000000012.parquet     one file for each epoch with outputs
    _catchwater/marks.json                 the writer of this folder, and its epochs (`kept_marks`)

The driver writes the staged outputs of an epoch as one file and stores it by create-if-absent under
the epoch's name, with the mark in its footer: that one request is the commit. So a reader of the
folder, on a disk or on S3, sees a whole epoch or none of it, and no file that it must not read.
`marks.json` is written afterwards; after a crash between the two the epoch runs again, finds its
file, and recognises it by the mark in the footer.

Relies on the object store seam for atomic, durable objects. Lists only to find foreign files. Does
not merge small files, because no store can replace several files by one atomically.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.objects.base import (
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from catchwater.objects.open import open_store, place
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    Fix,
    OutputRecord,
    RowId,
    SinkFull,
    SinkRow,
    SinkUnavailable,
    Staged,
    StagedRow,
    TargetDiffers,
    TargetState,
)
from catchwater.sinks.columns import ROW_COLUMNS
from catchwater.sinks.config import (
    Guarantee,
    ImpossibleDelivery,
    Kind,
    SinkConfig,
    option,
    text,
    without_secrets,
    without_user,
)
from catchwater.sinks.epochs import Mark, Marks, Owner, decode_marks
from catchwater.sinks.kept_marks import KeptMarks

if TYPE_CHECKING:
    from catchwater.sinks.arrow_columns import Columns
    from catchwater.sinks.config import SinkContext
    from catchwater.sinks.epochs import Archive, StagedFile

MARKS = "_catchwater/marks"

_FOOTER_KEY = b"catchwater"
_NAME = re.compile(r"epoch-(\d{20})\.parquet")


class ParquetSink:
    """See `base.Sink`."""

    def __init__(
        self,
        store: ObjectStore,
        columns: "Columns",
        truth: "Archive",
        *,
        owner: Owner,
        clock: Clock = SYSTEM,
        hold: Callable[[], None] = lambda: None,
    ) -> None:
        """`hold` is asked before a file is written.

        Raises `TargetTaken`, and `TargetDiffers` where the files have other columns.
        """
        self.name = owner.sink
        self.retracts = False  # no column could say that a row takes back another
        self.truth = truth
        self._store = store
        self._columns = columns
        self._owner = owner
        self._nothing = Marks.none(owner).claimed(owner)
        self._kept = KeptMarks(store, MARKS, owner, self._nothing)
        self._hold = hold
        self._clock = clock
        self._oldest = 0
        with self._target():
            self._check_columns(self._kept.read())
            self._kept.claim()

    def stager(self) -> "StagedFile":
        return self.truth.stager()

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        """Create the epoch's file, once."""
        pieces = sorted(staged, key=lambda piece: piece.shard)
        mark = Mark.of(epoch, self._owner.generation, pieces)
        with self._target():
            found = self._kept.read().admit(mark)
            if found is None:
                self.truth.record(epoch, pieces, self._clock.now_ms())
                if mark.records:
                    self._create(mark, self._columns.table(self.truth.rows(epoch)))
                # Looked at again, as late as possible: writing took time, and another driver of
                # the pipeline may have gone on meanwhile.
                marks = self._kept.read()
                if marks.admit(mark) is None:
                    self._kept.write(marks.written(mark, self._oldest))
        return (found or mark).sink_epoch(self._store.url())

    def last_epoch(self) -> int | None:
        """The newest epoch that the marks know."""
        with self._target():
            return self._kept.read().newest

    def withdraw(self, after: int) -> None:
        """Delete the files of older generations' epochs after this one, the newest first."""
        with self._target():
            marks, gone = self._kept.read().withdrawn(after, self._owner.generation)
            # From here on a driver of an older generation commits nothing.
            self._kept.write(marks)
            stray = [epoch for key in self._listed() if (epoch := _epoch_of(key)) is not None]
            for epoch in sorted({*gone, *stray}, reverse=True):
                if epoch > after and self._generation_of(epoch) < self._owner.generation:
                    self._store.delete(_key(epoch))
            if marks.newest is None or marks.newest <= after:
                self.truth.withdraw(after)  # nothing there is this generation's own

    def identity(self, record: OutputRecord) -> None:
        """Files are only added to."""
        return None

    def digest(self, record: OutputRecord) -> bytes:
        """Of the record's columns."""
        return self._columns.digest(record)

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        """What the files hold; one that cannot be read holds nothing."""
        with self._target():
            for key in self._files(range(first, last + 1)):
                for row in self._rows_in(key):
                    if first <= row.id.epoch <= last:
                        yield row

    def repair(self, fixes: Iterable[Fix]) -> list[Fix]:
        """Write each epoch's file anew, with these rows as they should be."""
        by_epoch: dict[int, dict[RowId, Fix]] = defaultdict(dict)
        for fix in fixes:
            by_epoch[fix.id.epoch][fix.id] = fix
        with self._target():
            for key in self._strays():
                self._without(key, by_epoch)
            for epoch, wanted in sorted(by_epoch.items()):
                self._mend(epoch, wanted)
        return []

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Forget marks and staged pieces before this epoch."""
        self._oldest = oldest
        self.truth.sweep(oldest, now_ms)

    def close(self) -> None:
        """Nothing is held open."""

    def _check_columns(self, marks: Marks) -> None:
        """Compare with the newest file: readers want one type a column over all files."""
        mark = next((mark for mark in reversed(marks.epochs) if mark.records), None)
        table = self._read(_key(mark.epoch)) if mark else None
        if table is not None:
            self._columns.check(table.schema, f"the files at {self._store.url()}")

    def _create(self, mark: Mark, table: Any) -> None:
        """Store the epoch's file, or know the one that is there."""
        data, key = _encode(table, _footer(self._nothing, mark)), _key(mark.epoch)
        self._hold()
        try:
            self._store.put_if_absent(key, [data])
            return
        except ObjectExists:
            there = self._footer(key)
        if there is not None:
            there.owned_by(self._owner, self._store.url())
            there.claimed(self._owner)
            found = there.mark(mark.epoch)
            if found is not None and found.checksum == mark.checksum:
                return
            if there.generation >= mark.generation:
                there.admit(mark)  # raises: it has this epoch from another generation or content
        # Left behind by a generation that was rolled back, or not readable at all.
        self._hold()
        self._store.put(key, [data])

    def _generation_of(self, epoch: int) -> int:
        """The generation that wrote an epoch's file; -1 if that is not known."""
        footer = self._footer(_key(epoch))
        return -1 if footer is None else footer.generation

    def _footer(self, key: str) -> Marks | None:
        table = self._read(key)
        kept = (table.schema.metadata or {}).get(_FOOTER_KEY) if table is not None else None
        return None if kept is None else decode_marks(kept, place(self._store, key))

    def _read(self, key: str) -> Any:
        """A file as a table; None if it is missing or no Parquet file."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return pq.read_table(pa.BufferReader(self._store.get(key)))
        except (ObjectMissing, pa.ArrowInvalid, OSError):
            return None

    def _rows_in(self, key: str) -> Iterator[SinkRow]:
        from catchwater.sinks.arrow_columns import has_identities

        table = self._read(key)
        if table is not None and has_identities(table):
            yield from self._columns.rows_of(table)

    def _files(self, epochs: Iterable[int]) -> Iterator[str]:
        yield from map(_key, epochs)
        yield from self._strays()

    def _strays(self) -> list[str]:
        """Files that readers of the folder see and that no epoch has written."""
        return [key for key in self._listed() if _epoch_of(key) is None]

    def _listed(self) -> list[str]:
        found = [info.key for info in self._store.list("")]
        return [key for key in found if key.endswith(".parquet") and not key.startswith("_")]

    def _without(self, key: str, fixes: Mapping[int, Mapping[RowId, Fix]]) -> None:
        """Take what is mended elsewhere out of a file that no epoch has written."""
        import pyarrow as pa

        rows = list(self._rows_in(key))
        keep = [row.id not in fixes.get(row.id.epoch, {}) for row in rows]
        if rows and not any(keep):
            self._store.delete(key)
        elif not all(keep):
            self._store.put(key, [_encode(self._read(key).filter(pa.array(keep)), None)])

    def _mend(self, epoch: int, fixes: Mapping[RowId, Fix]) -> None:
        import pyarrow as pa

        from catchwater.sinks.arrow_columns import has_identities

        key, there = _key(epoch), self._read(_key(epoch))
        added = self._columns.table(
            StagedRow(fix.id, fix.record) for fix in fixes.values() if fix.record is not None
        )
        tables = [added]
        if there is not None and has_identities(there):
            keep = [row.id not in fixes for row in self._columns.rows_of(there)]
            tables.append(self._columns.cast(there.filter(pa.array(keep, pa.bool_()))))
        merged = pa.concat_tables(tables, promote_options="default").replace_schema_metadata()
        merged = merged.sort_by([(name, "ascending") for name in ROW_COLUMNS])
        marks = self._kept.read()
        mark = marks.mark(epoch)
        if merged.num_rows:
            footer = None if mark is None else _footer(marks, mark)
            self._store.put(key, [_encode(merged, footer)])
        else:
            self._store.delete(key)

    @contextmanager
    def _target(self) -> Iterator[None]:
        """Tell a store that is away from one that is full, or gone."""
        try:
            yield
        except StoreUnavailable as error:
            raise SinkUnavailable(str(error), hint=error.hint) from error
        except StoreFull as error:
            raise SinkFull(str(error), hint=error.hint) from error
        except ObjectMissing as error:
            raise TargetDiffers(
                f"The folder {self._store.url()} is gone.",
                hint="Restore it, or start the pipeline again: it makes the folder anew, and what "
                "it held comes back by catchwater sink repair, as far as that is kept.",
            ) from error


def _key(epoch: int) -> str:
    return f"epoch-{epoch:020d}.parquet"


def _epoch_of(key: str) -> int | None:
    match = _NAME.fullmatch(key)
    return int(match[1]) if match else None


def _footer(marks: Marks, mark: Mark) -> bytes:
    """What an epoch's file says of itself."""
    return msgspec.structs.replace(
        marks, generation=mark.generation, newest=mark.epoch, epochs=(mark,)
    ).encode()


def _encode(table: Any, footer: bytes | None) -> memoryview:
    import pyarrow.parquet as pq

    buffer = BytesIO()
    metadata = None if footer is None else {_FOOTER_KEY: footer}
    pq.write_table(table.replace_schema_metadata(metadata), buffer, compression="zstd")
    return buffer.getbuffer()


# What it declares


@dataclass(frozen=True)
class ParquetOptions:
    """The keys of a Parquet sink."""

    url: str = option(text, doc="of a store, or a folder from the pipeline file's folder")


def files_guarantee(config: SinkConfig, why: str) -> Guarantee:
    """See `Kind.guarantee`: of sinks to which once is no dearer than at least once."""
    if config.exactly_once:
        return Guarantee("exactly-once", why)
    raise ImpossibleDelivery(
        f"The sink {config.name!r} of kind {config.kind} writes epochs once at no further cost: "
        "there is no cheaper at-least-once.",
        hint='Leave delivery out, or set delivery = "exactly-once".',
    )


def _guarantee(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    return files_guarantee(
        config, "an epoch is one file, created at once under its own name, with its mark in it"
    )


def _target(config: SinkConfig, folder: Path) -> str:
    url = config.options.url
    return without_secrets(url) if "://" in url else (folder / url).resolve().as_uri()


def check_columns(config: SinkConfig, context: "SinkContext") -> None:
    """Raise `ColumnUnsupported` where a field of the output has no column."""
    from catchwater.sinks.arrow_columns import Columns

    Columns(context.output_type)


def _url(config: SinkConfig, context: "SinkContext") -> str:
    url: str = config.options.url
    return url if "://" in url else (context.folder / url).absolute().as_uri()


def _open(config: SinkConfig, context: "SinkContext", truth: "Archive") -> ParquetSink:
    """`url` is a store's URL, or a path beside the pipeline's file."""
    from catchwater.sinks.arrow_columns import Columns

    try:
        store = open_store(_url(config, context), context.clock, may_seal=False)
    except (StoreFull, StoreUnavailable):
        raise
    except StoreError as error:
        raise TargetDiffers(
            str(error), hint="Name a folder that can be written to, or a store's URL."
        ) from error
    columns = Columns(context.output_type)
    owner = context.owner(config.name)
    return ParquetSink(store, columns, truth, owner=owner, clock=context.clock, hold=context.hold)


def _look(config: SinkConfig, context: "SinkContext") -> TargetState:
    """A folder that is not there is left so."""
    from catchwater.sinks.epochs import Archive, StagedFile

    parts = urlsplit(_url(config, context))
    if parts.scheme == "file" and not Path(unquote(parts.path)).exists():
        return TargetState()
    try:
        newest = _open(config, context, Archive(StagedFile("", ""))).last_epoch()
    except TargetDiffers as differs:
        return TargetState(differs=differs)
    return TargetState(newest is not None, newest)


KIND = Kind(
    name="parquet",
    options=ParquetOptions,
    guarantee=_guarantee,
    target=_target,
    place=lambda options: without_user(options.url),
    named_by="url",
    check=check_columns,
    open=_open,
    look=_look,
    modules=("pyarrow.parquet", "catchwater.sinks.arrow_columns"),
    extra="parquet",
    one_writer=True,
)
