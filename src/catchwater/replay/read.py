"""A task's records as Arrow, in the columns of Spark's Kafka source. No Spark.

A slice with a range is read from storage, without any broker; if its object is gone since the plan
was made (a chunk that was packed meanwhile), or its signed URL has ended, a new plan is asked for.
A slice without one is fetched from its leader, on any Kafka, or made of a table's rows, which has
what the log has deleted (`rows`). All meet in the same decoder, which leaves out what aborted
transactions have written by the list that came with the plan, or with the Fetch reply.

Promises every wanted offset that holds a record, once, in order; or an error that names topic,
partition and offset. Holds one range, or one Fetch reply, at a time.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as declared

import pyarrow as pa

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectMissing
from catchwater.objects.urls import AccessEnded, read_range, shown
from catchwater.replay import bundles
from catchwater.replay.control import Control
from catchwater.replay.offsets import HistoryLost
from catchwater.replay.options import TIMESTAMP_MS
from catchwater.replay.plan import (
    CHUNK,
    CLEANED,
    Missing,
    OffsetRange,
    PlanRange,
    Slice,
    Task,
    slices_of,
)
from catchwater.replay.quota import Meter
from catchwater.replay.rows import made_again, records_of
from catchwater.values.policy import FieldPolicy, parse_policy
from catchwater.wire.arrow import (
    AbortedTransaction,
    Located,
    PlacedBatch,
    RecordsDamaged,
    encode_batch,
    locate,
    place,
)
from catchwater.wire.client import EARLIEST, Client, RequestTimedOut
from catchwater.wire.columns import COLUMNS, HEADERS_TYPE
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import Fetched
from catchwater.wire.security.settings import UNSECURED, Security

_LOG = logging.getLogger(__name__)

ROWS = 10_000
"""Rows of an Arrow batch: what Spark takes best; a tenth of it halves the speed."""

_TYPES = {
    **COLUMNS,
    "topic": pa.string(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "headers": HEADERS_TYPE,
    TIMESTAMP_MS: pa.int64(),
}
_MOST_MS = (2**63 - 1) // 1000
"""Spark holds times as microseconds in 64 bits."""
_TIMEOUT_S = 60.0
_FETCH_WAIT_MS = 500
_EMPTY_FETCHES = int(_TIMEOUT_S * 1000 / _FETCH_WAIT_MS)
# What Spark's connector is tuned to; a reply is decoded in groups, so size costs memory only.
_FETCH_BYTES = 8 * 2**20
_WORTH_SAYING_S = 1.0
"""A task that has lost more time than this says so when it ends."""


class RangeDamaged(CatchwaterError):
    """A range of storage does not hold what the plan says."""


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How tasks read; `control_url` is None where records come from the leaders only."""

    bootstrap: str
    columns: tuple[str, ...]
    control_url: str | None = declared(default=None, repr=False)
    read_committed: bool = False
    fail_on_data_loss: bool = True
    security: Security = UNSECURED
    """Of the leaders' connections."""
    client_id: str = "catchwater"
    """The name by which the leaders know the query."""
    bundled: bool = False
    """Whether records are handed over as bundles (see `bundles`)."""
    locations: tuple[str, ...] = ()
    """The stores that a new plan may name (see `replay.control`)."""


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The schema of what `read_task` yields for these columns."""
    return pa.schema([(name, _TYPES[name]) for name in columns])


def read_task(task: Task, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The task's records, in batches of up to ROWS rows; or as bundles.

    Raises `HistoryLost`, `RangeDamaged`, `RecordsDamaged`, and the errors of store and client.
    """
    delays, meter = Delays(), Meter(task.quota, task.stored_bytes)
    try:
        if settings.bundled:
            yield from bundles.joined(_bundles(task, settings, delays, meter))
        else:
            yield from _even(_rows(task, settings, delays, meter), arrow_schema(settings.columns))
    finally:
        if delays.lost_s + meter.throttled_s >= _WORTH_SAYING_S:
            _LOG.warning(
                "%s took %.1f s longer: %.1f s where %d requests were repeated or held back, "
                "%.1f s for its quota.",
                task,
                delays.lost_s + meter.throttled_s,
                delays.lost_s,
                delays.repeats,
                meter.throttled_s,
            )


class Delays(Clock):
    """A clock for one task's requests that adds up what repeating them has cost."""

    def __init__(self) -> None:
        super().__init__()
        self.repeats = 0
        self.lost_s = 0.0
        """Failed attempts and the waits behind them."""
        self._since_s = self.monotonic_s()

    def begin(self) -> None:
        """A request begins; what passes until it is repeated is lost."""
        self._since_s = self.monotonic_s()

    def repeat(self) -> None:
        """The request begins anew."""
        now_s = self.monotonic_s()
        self.lost_s += now_s - self._since_s
        self.repeats += 1
        self._since_s = now_s

    def pause(self, seconds: float, woken: int | None = None) -> None:
        """Clients and stores wait before they repeat, or because a broker throttles them."""
        super().pause(seconds, woken)
        self.repeat()


def _rows(
    task: Task, settings: ReadSettings, delays: Delays, meter: Meter
) -> Iterator[pa.RecordBatch]:
    schema = arrow_schema(settings.columns)
    for each, located in _located(task, settings, delays, meter):
        yield _complete(located, each, schema)


def _bundles(
    task: Task, settings: ReadSettings, delays: Delays, meter: Meter
) -> Iterator[pa.RecordBatch]:
    for each, located in _located(task, settings, delays, meter):
        if "timestamp" in settings.columns:
            _check_times(located, each)
        yield from bundles.bundled(located, each.topic, each.partition, settings.columns)


def _located(
    task: Task, settings: ReadSettings, delays: Delays, meter: Meter
) -> Iterator[tuple[Slice, Located]]:
    """The task's records, where they lie, and the slice they are of."""
    for each in task.slices:
        if each.files:
            found = _from_table(each, settings, meter)
        elif each.range is None:
            found = _from_leader(each, settings, delays)
        else:
            meter.pay(each.range.byte_size)
            found = _from_storage(each, settings, delays)
        policy = parse_policy(each.fields)
        for located in found:
            for seen in (located,) if policy is None else hidden(located, policy):
                yield each, seen


def hidden(located: Located, policy: FieldPolicy) -> Iterator[Located]:
    """The same records with their values as they may be seen."""
    times = located.times.tolist()
    pairs = [
        [(header["key"], header["value"]) for header in each or ()]
        for each in located.column("headers").to_pylist()
    ]
    keys, values = (located.column(name).to_pylist() for name in ("key", "value"))
    records = [*zip(keys, map(policy.apply, values), times, pairs, strict=True)]
    yield from made_again(encode_batch(records), located.offsets, located.append_times)


def _even(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of up to ROWS: large ones are sliced, small ones put together."""
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if waiting and rows + batch.num_rows > ROWS:
            yield _joined(waiting, schema)
            waiting, rows = [], 0
        if batch.num_rows > ROWS:
            yield from (batch.slice(at, ROWS) for at in range(0, batch.num_rows, ROWS))
        else:
            waiting.append(batch)
            rows += batch.num_rows
    if waiting:
        yield _joined(waiting, schema)


def _joined(batches: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    return pa.Table.from_batches(batches, schema).combine_chunks().to_batches()[0]


def _complete(located: Located, origin: Slice, schema: pa.Schema) -> pa.RecordBatch:
    """The records' columns, and those that are the same in every row, as Spark names and types."""
    arrays = []
    rows = len(located.offsets)
    for field in schema:
        if field.name == "topic":
            arrays.append(pa.repeat(pa.scalar(origin.topic), rows))
        elif field.name == "partition":
            arrays.append(pa.repeat(pa.scalar(origin.partition, pa.int32()), rows))
        elif field.name == "timestamp":
            arrays.append(_microseconds(located.column("timestamp"), origin))
        elif field.name == TIMESTAMP_MS:
            arrays.append(located.column("timestamp").view(pa.int64()))
        else:
            arrays.append(located.column(field.name))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _microseconds(times: pa.Array, origin: Slice) -> pa.Array:
    try:
        return times.cast(_TYPES["timestamp"])
    except pa.ArrowInvalid as error:
        raise CatchwaterError(
            f"A record of {origin.topic}-{origin.partition} from offset {origin.first} on has a "
            f"timestamp that Spark cannot hold: {error}.",
            hint="Leave the column timestamp out to read the rest.",
        ) from error


def _check_times(located: Located, origin: Slice) -> None:
    """Raise, as rows would, if there is a time that Spark cannot hold."""
    times = located.times
    if times.max() > _MOST_MS or times.min() < -_MOST_MS:
        _microseconds(located.column("timestamp"), origin)


def _from_storage(each: Slice, settings: ReadSettings, delays: Delays) -> Iterator[Located]:
    assert each.range is not None
    try:
        data = _bytes_of(each.range, delays)
    except (ObjectMissing, AccessEnded):
        # Packed or deleted since the plan, or its URL has ended: believe the new plan.
        newest = _planned_again(each, settings)
        delays.repeat()
        for newer in newest:
            assert newer.range is not None
            data = _bytes_of(newer.range, delays)
            yield from _in_range(data, newer, newer.range)
        return
    yield from _in_range(data, each, each.range)


def _bytes_of(where: PlanRange, delays: Delays) -> memoryview:
    delays.begin()
    return read_range(where.url, where.byte_offset, where.byte_size, clock=delays)


def _in_range(data: memoryview, each: Slice, where: PlanRange) -> Iterator[Located]:
    place_name = (
        f"{shown(where.url)} bytes {where.byte_offset} to {where.byte_offset + where.byte_size}"
    )
    try:
        batches = place(data, base_offset=where.base_offset if where.kind == CHUNK else None)
        if not _holds(batches, where):
            raise RangeDamaged(
                f"{place_name} should hold {each.topic}-{each.partition} offsets "
                f"{where.base_offset} to {where.last_offset}, and does not.",
                hint="Check the log's storage before reading on; nothing was skipped.",
            )
        yield from locate(
            data,
            batches,
            first=each.first,
            stop=each.stop,
            aborted=[AbortedTransaction(a.producer_id, a.first_offset) for a in each.aborted],
        )
    except RecordsDamaged as error:
        raise RangeDamaged(f"{each.topic}-{each.partition} in {place_name}: {error}") from error


def _holds(batches: Sequence[PlacedBatch], where: PlanRange) -> bool:
    """Whether the batches are those of the range; only compaction leaves out a beginning."""
    if not batches or batches[-1].next_offset != where.last_offset + 1:
        return False
    first = batches[0].base_offset
    return first == where.base_offset or (where.kind == CLEANED and first > where.base_offset)


def _planned_again(each: Slice, settings: ReadSettings) -> list[Slice]:
    if settings.control_url is None:
        return [each]
    wanted = OffsetRange(each.topic, each.partition, each.first, each.stop)
    control = Control(settings.control_url, locations=settings.locations)
    plan = control.plan([wanted], read_committed=settings.read_committed)
    if plan.missing:
        raise HistoryLost(plan.missing, "Deleted while the query was reading it")
    return slices_of([wanted], plan.ranges, plan.aborted)


def _from_table(each: Slice, settings: ReadSettings, meter: Meter) -> Iterator[Located]:
    at, asked_at = each.first, -1
    while True:
        try:
            for located in _of_files(each, settings, meter):
                at = int(located.offsets[-1]) + 1
                yield located
            return
        except (FileNotFoundError, ObjectMissing, AccessEnded):
            # Made one with others since the plan, and its snapshot has expired; or its URL has
            # ended, as it does again and again where there is much to read.
            if at == asked_at:
                raise
            each, asked_at = _in_newest(replace(each, first=at), settings), at


def _of_files(each: Slice, settings: ReadSettings, meter: Meter) -> Iterator[Located]:
    try:
        yield from records_of(each, settings.columns, meter.pay)
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise RangeDamaged(
            f"The table of {each.topic}, from which offsets {each.first} to {each.stop - 1} of "
            f"partition {each.partition} are read, is out of reach: {error}.",
            hint="May this user read its files?",
        ) from error


def _in_newest(each: Slice, settings: ReadSettings) -> Slice:
    """The slice in the table as it is now."""
    assert settings.control_url is not None, "it has named the files"
    control = Control(settings.control_url, locations=settings.locations)
    wanted = {each.partition: (each.first, each.stop)}
    found = control.table_files(each.topic, wanted, as_bytes=True)
    if found is None or found.values or found.spans != wanted:
        lost = Missing(each.topic, each.partition, each.first, each.stop)
        raise HistoryLost([lost], "Deleted from the topic's table while the query was reading it")
    return replace(each, files=(*found.whole, *found.partly))


def _from_leader(each: Slice, settings: ReadSettings, delays: Delays) -> Iterator[Located]:
    offset = each.first
    client = Client(
        settings.bootstrap,
        client_id=settings.client_id,
        timeout_s=_TIMEOUT_S,
        clock=delays,
        security=settings.security,
    )
    with client:
        while offset < each.stop:
            delays.begin()
            fetched, batches = _fetch(client, each, offset, settings)
            if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
                offset = _after_loss(client, each, offset, settings)
                continue
            yield from locate(
                fetched.records,
                batches,
                first=offset,
                stop=each.stop,
                aborted=[AbortedTransaction(*pair) for pair in fetched.aborted],
            )
            offset = batches[-1].next_offset


def _fetch(
    client: Client, each: Slice, offset: int, settings: ReadSettings
) -> tuple[Fetched, list[PlacedBatch]]:
    """What the leader has from `offset` on: at least one batch, or an error and none."""
    key = (each.topic, each.partition)
    for _ in range(_EMPTY_FETCHES):
        fetched = client.fetch(
            {key: offset},
            max_partition_bytes=_FETCH_BYTES,
            max_wait_ms=_FETCH_WAIT_MS,
            read_committed=settings.read_committed,
        ).get(key)
        batches = place(fetched.records, partial_tail=True) if fetched else []
        if fetched and (fetched.error or batches):
            return fetched, batches
    raise RequestTimedOut(
        f"{each.topic}-{each.partition} should hold offsets up to {each.stop - 1}, but its leader "
        f"has sent nothing from offset {offset} on for {_TIMEOUT_S:g} s.",
        hint="Is a transaction open, or a replica behind?",
    )


def _after_loss(client: Client, each: Slice, offset: int, settings: ReadSettings) -> int:
    """Where to go on when the leader does not have `offset` (any more)."""
    key = (each.topic, each.partition)
    log_start = client.list_offsets({key: EARLIEST})[key]
    end = min(each.stop, log_start) if log_start > offset else each.stop
    lost = HistoryLost([Missing(*key, offset, end)], "Deleted while the query was reading it")
    if settings.fail_on_data_loss:
        raise lost
    _LOG.warning("failOnDataLoss is false, so the query goes on without. %s", lost)
    return end
