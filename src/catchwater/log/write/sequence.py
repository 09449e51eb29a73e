"""The only place where offsets are assigned.

Pure: partition and producer states plus a chunk's index in; results, runs and new states out.
The same chunks in the same order always give the same offsets, which is what makes the
write-ahead log the truth and the catalog its replay. No clock: time is the chunk's own.

What a producer may append is decided by Kafka's rules, at the end of this module. A transaction is
open on a partition from its first batch to its control batch there; below the first offset of the
oldest open one the partition is stable. The control batches of all its partitions come in one
chunk, which ends the transaction whole: the first one completes its row and has its pending group
offsets moved. A chunk that ends what is not prepared (a second one for the same end) changes
nothing.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from catchwater.catalog.rows import (
    AbortedRow,
    Changes,
    EndedTxn,
    ObjectRow,
    OpenTxnRow,
    PartitionKey,
    PartitionRow,
    ProducerRow,
    RunRow,
    Scope,
    ScopeRows,
    Session,
    Snapshot,
    TxnRow,
)
from catchwater.log.format.chunk import (
    CONTROL,
    TRANSACTIONAL,
    Chunk,
    ChunkError,
    Entry,
    decode_index,
)
from catchwater.log.write.txn import (
    IDLE,
    PREPARED,
    Txns,
    announces,
    begun,
    completed,
    is_end,
)
from catchwater.objects.base import Buffer
from catchwater.wal.base import Position
from catchwater.wire.errors import ErrorCode

BATCHES_KEPT = 5
PRODUCER_EXPIRY_MS = 24 * 60 * 60 * 1000
"""Kafka's default of `producer.id.expiration.ms`."""

_SEQUENCES = 2**31


class ProducerState(NamedTuple):
    """A producer's standing on one partition."""

    epoch: int
    batches: tuple[tuple[int, int, int], ...]
    """At most five, oldest first: (base sequence, last sequence, base offset).

    Empty where a marker has raised the epoch and nothing was appended since.
    """
    last_ms: int


class Result(msgspec.Struct, frozen=True):
    """The answer to one batch; a duplicate is a success with its first offset."""

    error: ErrorCode
    base_offset: int
    duplicate: bool = False


@dataclass(slots=True)
class PartitionState:
    """A partition between two chunks. The high watermark never goes back."""

    log_start: int = 0
    high_watermark: int = 0
    bytes: int = 0
    earliest_timestamp: int = -1
    """Largest timestamp of the oldest batch or run, ms; -1 when the partition holds nothing."""
    producers: dict[int, ProducerState] = field(default_factory=dict)
    open_txns: dict[int, int] = field(default_factory=dict)
    """Producer id -> first offset of its open transaction here."""
    last_aborted: int = field(default=-1, compare=False)
    """Offset of the last abort's marker that was sequenced here; not known from before a start."""

    @property
    def last_stable_offset(self) -> int:
        """Everything below belongs to no open transaction."""
        return min(self.open_txns.values()) if self.open_txns else self.high_watermark


@dataclass(slots=True)
class NewRun:
    """Accepted batches of one partition that lie side by side in the chunk."""

    key: PartitionKey
    base_offset: int
    last_offset: int
    byte_offset: int
    byte_size: int
    max_timestamp: int
    record_count: int


@dataclass(slots=True)
class Sequenced:
    """The outcome of a chunk: one result per entry, the runs, and whose state has changed."""

    results: list[Result] = field(default_factory=list)
    runs: list[NewRun] = field(default_factory=list)
    changed: defaultdict[PartitionKey, set[int]] = field(default_factory=lambda: defaultdict(set))
    """Partition -> producer ids whose standing changed."""
    txns: set[int] = field(default_factory=set)
    """Producer ids whose transaction has begun or ended."""
    opened: list[OpenTxnRow] = field(default_factory=list)
    closed: list[tuple[bytes, int, int]] = field(default_factory=list)
    aborted: list[AbortedRow] = field(default_factory=list)
    ended: list[EndedTxn] = field(default_factory=list)


Taken = Callable[[Position, Chunk, Sequenced, Changes], None]


def sequence(
    entries: Sequence[Entry],
    states: Mapping[PartitionKey, PartitionState],
    txns: Txns,
    created_ms: int,
) -> Sequenced:
    """Assign offsets to a chunk's batches, in index order, and move states and `txns` along.

    A partition without a state answers UNKNOWN_TOPIC_OR_PARTITION.
    """
    done = Sequenced()
    for entry in entries:
        # Into names at once: this is done for every batch, and a name costs more than a place.
        topic_id, partition, _, size, producer_id, _, _, last_delta, _, newest, attributes = entry
        key = (topic_id, partition)
        state = states.get(key)
        if state is None:
            done.results.append(refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            continue
        known = None
        is_control = attributes & CONTROL
        if is_control or producer_id >= 0:
            known = standing(state.producers, producer_id, created_ms)
            if is_control:
                answer = _check_end(entry, state, txns, done)
            elif attributes & TRANSACTIONAL or producer_id in txns:
                answer = _check(entry, state, known, txns, done, created_ms)
            else:
                answer = known_or_refused(entry, known)
            if answer is not None:
                done.results.append(answer)
                continue
        base_offset = state.high_watermark
        done.results.append(Result(ErrorCode.NONE, base_offset))
        if state.bytes == 0:
            state.earliest_timestamp = newest
        state.high_watermark = base_offset + last_delta + 1
        state.bytes += size
        producers = done.changed[key]
        if is_control:
            _close(entry, state, done, base_offset)
        elif producer_id >= 0:
            producers.add(producer_id)
            state.producers[producer_id] = after_batch(entry, known, base_offset, created_ms)
        _extend(done.runs, key, entry, base_offset)
    return done


def scope_of(chunk: Chunk, session: Session | None) -> Scope:
    """The rows that decide what becomes of a chunk."""
    entries = [entry for entry in chunk.entries if entry.producer_id >= 0]
    return Scope(
        session=session,
        transactional=sorted({entry.producer_id for entry in entries}),
        partitions=sorted({(entry.topic_id, entry.partition) for entry in chunk.entries}),
        producers=sorted({(e.topic_id, e.partition, e.producer_id) for e in entries}),
    )


def take_chunk(
    chunk: Chunk, position: Position, states: Mapping[PartitionKey, PartitionState], txns: Txns
) -> tuple[Sequenced, Changes]:
    """Sequence a chunk, and what the catalog has to store of it."""
    done = sequence(chunk.entries, states, txns, chunk.created_ms)
    end = position.offset + position.size
    file = ObjectRow(position.file, "chunk", "live", end, chunk.created_ms)
    return done, catalog_changes(done, states, txns, file, position.offset)


def replay(
    chunks: Iterable[tuple[Position, Chunk]],
    states: Mapping[PartitionKey, PartitionState],
    txns: Txns,
    *,
    before: Callable[[Chunk], None] | None = None,
    after: Taken | None = None,
) -> int:
    """Sequence chunks of a write-ahead log again, in order; the last one's number, or 0.

    At a broker's start, where a catalog is asked without its broker, and where one is rebuilt.
    Moves the states and `txns` along; `before` and `after` are called with every chunk.
    """
    sequenced = 0
    for position, chunk in chunks:
        if before is not None:
            before(chunk)
        done, changes = take_chunk(chunk, position, states, txns)
        if after is not None:
            after(position, chunk, done, changes)
        sequenced = position.sequence
    return sequenced


def decoded(frames: Iterable[tuple[Position, Buffer]]) -> Iterator[tuple[Position, Chunk]]:
    """The chunks of frames. Raises `ChunkError` for a frame that is no chunk of a known format."""
    for position, payload in frames:
        try:
            chunk = decode_index(payload)
        except ChunkError as error:
            raise ChunkError(
                f"Frame {position.sequence} at byte {position.offset} of {position.file}: {error}",
                hint=error.hint,
            ) from error
        assert chunk.size_bytes == position.size, "a frame holds one chunk"
        yield position, chunk


def sequence_staged(
    chunks: Mapping[str, Chunk], states: Mapping[PartitionKey, PartitionState]
) -> tuple[dict[PartitionKey, PartitionState], Changes]:
    """The states and the catalog's rows as they will be once these staged chunks are committed.

    `chunks` is by object key. The states given are left as they are; of the partitions the chunks
    append to, all of which must have one, the new ones are returned.
    """
    keys = {(entry.topic_id, entry.partition) for c in chunks.values() for entry in c.entries}
    after = {key: replace(states[key]) for key in sorted(keys)}
    changes = []
    for object_key, chunk in chunks.items():
        done = sequence(chunk.entries, after, {}, chunk.created_ms)
        row = ObjectRow(object_key, "chunk", "live", chunk.size_bytes, chunk.created_ms)
        changes.append(catalog_changes(done, after, {}, row, 0))
    return after, Changes(
        runs=[run for change in changes for run in change.runs],
        partitions=[partition_row(key, state) for key, state in after.items()],
        objects=[row for change in changes for row in change.objects],
    )


def catalog_changes(
    done: Sequenced,
    states: Mapping[PartitionKey, PartitionState],
    txns: Txns,
    object_row: ObjectRow,
    at: int,
) -> Changes:
    """What the catalog has to store of a sequenced chunk that begins at byte `at` of an object."""
    file = object_row.key
    runs = [
        RunRow(
            *run.key,
            run.base_offset,
            run.last_offset,
            file,
            at + run.byte_offset,
            run.byte_size,
            run.max_timestamp,
            run.record_count,
        )
        for run in done.runs
    ]
    partitions = []
    producers = []
    for key, changed in done.changed.items():
        state = states[key]
        partitions.append(partition_row(key, state))
        for producer_id in changed:
            row = (*key, producer_id, *state.producers[producer_id])
            producers.append(ProducerRow._make(row))
    return Changes(
        runs,
        partitions,
        producers,
        [object_row],
        txns=[txns[producer_id] for producer_id in sorted(done.txns)],
        open_txns=done.opened,
        closed_txns=done.closed,
        aborted=done.aborted,
        ended=done.ended,
    )


def states_of(rows: Snapshot | ScopeRows) -> dict[PartitionKey, PartitionState]:
    """The states that the catalog knows."""
    states = {row[:2]: PartitionState(*row[2:]) for row in rows.partitions}
    for topic_id, index, producer_id, *known in rows.producers:
        states[topic_id, index].producers[producer_id] = ProducerState._make(known)
    for row in rows.open_txns:
        states[row.topic_id, row.partition].open_txns[row.producer_id] = row.first_offset
    return states


def txns_of(rows: Snapshot | ScopeRows) -> Txns:
    """The transactional ids that the catalog knows, by producer id."""
    return {row.producer_id: row for row in rows.txns}


def partition_row(key: PartitionKey, state: PartitionState) -> PartitionRow:
    """A state as the catalog keeps it."""
    topic_id, index = key
    return PartitionRow(
        topic_id,
        index,
        state.log_start,
        state.high_watermark,
        state.bytes,
        state.earliest_timestamp,
    )


def _check(
    entry: Entry,
    state: PartitionState,
    known: ProducerState | None,
    txns: Txns,
    done: Sequenced,
    now_ms: int,
) -> Result | None:
    """The answer to a batch of a transactional id that is not appended; None: append it.

    Moves `txns` and what is open along.
    """
    txn = txns.get(entry.producer_id)
    error = fenced(entry, txn)
    if error is not ErrorCode.NONE:
        return refused(error)
    assert txn is not None, "without one it is refused"
    answer = known_or_refused(entry, known)
    if answer is not None:
        return answer
    is_open = entry.producer_id in state.open_txns
    if is_open and _is_ended_behind(entry, done):
        return refused(ErrorCode.CONCURRENT_TRANSACTIONS)
    error = not_in_transaction(entry, txn, is_open)
    if error is not ErrorCode.NONE:
        return refused(error)
    if is_open:
        return None
    if txn.state in IDLE:
        txns[entry.producer_id] = begun(txn, 2, now_ms)
        done.txns.add(entry.producer_id)
    state.open_txns[entry.producer_id] = state.high_watermark
    done.opened.append(
        OpenTxnRow(entry.topic_id, entry.partition, entry.producer_id, state.high_watermark)
    )
    return None


def _is_ended_behind(entry: Entry, done: Sequenced) -> bool:
    """Whether what is open here ends in this very chunk, by a marker that lies behind the batch.

    The batch would be part of the next transaction, and that marker would end it with this one.
    """
    place = (entry.topic_id, entry.partition, entry.producer_id)
    has_ended = any(end.producer_id == entry.producer_id for end in done.ended)
    return has_ended and all(opened[:3] != place for opened in done.opened)


def _check_end(entry: Entry, state: PartitionState, txns: Txns, done: Sequenced) -> Result | None:
    """As `_check`, for a control batch; the first one in a chunk completes the transaction."""
    ends_now = any(end.producer_id == entry.producer_id for end in done.ended)
    if not ends_now and is_end(entry, txns.get(entry.producer_id)):
        txns[entry.producer_id] = completed(txns[entry.producer_id])
        done.txns.add(entry.producer_id)
        done.ended.append(EndedTxn(entry.producer_id, entry.is_commit))
        ends_now = True
    is_open = ends_now and entry.producer_id in state.open_txns
    return None if is_open else refused(ErrorCode.INVALID_TXN_STATE)


def _close(entry: Entry, state: PartitionState, done: Sequenced, offset: int) -> None:
    """The transaction's end on one partition, at this offset."""
    producer_id = entry.producer_id
    first_offset = state.open_txns.pop(producer_id)
    key = (entry.topic_id, entry.partition)
    done.closed.append((*key, producer_id))
    if not entry.is_commit:
        done.aborted.append(AbortedRow(*key, producer_id, first_offset, offset))
        state.last_aborted = offset
    known = state.producers.get(producer_id)
    if known is not None and known.epoch < entry.producer_epoch:
        state.producers[producer_id] = known._replace(epoch=entry.producer_epoch, batches=())
        done.changed[key].add(producer_id)


def _extend(runs: list[NewRun], key: PartitionKey, entry: Entry, base_offset: int) -> None:
    """Add an accepted batch to the last run if it lies behind it, else begin a run."""
    _, _, byte_offset, size, _, _, _, last_delta, count, newest, _ = entry
    last_offset = base_offset + last_delta
    if runs:
        run = runs[-1]
        if run.key == key and run.byte_offset + run.byte_size == byte_offset:
            assert run.last_offset + 1 == base_offset, "a run's offsets are consecutive"
            run.last_offset = last_offset
            run.byte_size += size
            run.record_count += count
            if newest > run.max_timestamp:
                run.max_timestamp = newest
            return
    runs.append(NewRun(key, base_offset, last_offset, byte_offset, size, newest, count))


# --- what a producer may append ------------------------------------------------------------------
#
# Idempotence follows Apache Kafka (`ProducerAppendInfo.checkProducerEpoch`, `checkSequence` and
# `ProducerStateEntry.findDuplicateBatch`; KIP-98, KIP-360):
#
# - an older epoch is INVALID_PRODUCER_EPOCH;
# - a batch equal in epoch and sequences to one of the last five is a duplicate: success, with the
#   offset it got the first time;
# - a newer epoch must begin with sequence 0, else OUT_OF_ORDER_SEQUENCE_NUMBER;
# - in the same epoch the sequence must follow the last one (after 2^31-1 comes 0), else
#   OUT_OF_ORDER_SEQUENCE_NUMBER;
# - a producer nothing is known of (new, or forgotten after a day of silence) may begin with any
#   sequence, so that losing its state can never block it; UNKNOWN_PRODUCER_ID is not answered.
#   In a transaction of version 2, where every epoch begins with 0, it may not (KIP-890).
#
# A producer id that belongs to a transactional id appends in transactions only, with exactly the
# epoch the catalog has for it, so what is late is refused on every partition alike:
#
# - any other epoch is INVALID_PRODUCER_EPOCH, an unknown id INVALID_PRODUCER_ID_MAPPING;
# - while the end of the last transaction is being written, CONCURRENT_TRANSACTIONS;
# - version 1 announces its partitions (AddPartitionsToTxn): others are INVALID_TXN_STATE;
# - version 2 begins the transaction, and adds the partition, with the batch itself (KIP-890).


def refused(error: ErrorCode) -> Result:
    """The answer to a batch that is not appended."""
    return Result(error, -1)


def standing(
    producers: Mapping[int, ProducerState], producer_id: int, now_ms: int
) -> ProducerState | None:
    """What is known of a producer; one that was silent for too long is as good as new."""
    producer = producers.get(producer_id)
    if producer is None or producer.last_ms + PRODUCER_EXPIRY_MS < now_ms:
        return None
    return producer


def known_or_refused(entry: Entry, known: ProducerState | None) -> Result | None:
    """The answer to a duplicate or to a batch that may not follow; None: it may."""
    if known is None:
        must_begin = entry.is_transactional and entry.adds_partition
        return _OUT_OF_ORDER if must_begin and entry.base_sequence != 0 else None
    if entry.producer_epoch < known.epoch:
        return refused(ErrorCode.INVALID_PRODUCER_EPOCH)
    if entry.producer_epoch > known.epoch:
        return None if entry.base_sequence == 0 else _OUT_OF_ORDER
    last = _last_sequence(entry)
    for base_sequence, last_sequence, base_offset in known.batches:
        if base_sequence == entry.base_sequence and last_sequence == last:
            return Result(ErrorCode.NONE, base_offset, duplicate=True)
    expected = (known.batches[-1][1] + 1) % _SEQUENCES if known.batches else 0
    return None if entry.base_sequence == expected else _OUT_OF_ORDER


def after_batch(
    entry: Entry, known: ProducerState | None, base_offset: int, now_ms: int
) -> ProducerState:
    """The producer's standing once the batch has its offset."""
    kept: tuple[tuple[int, int, int], ...] = ()
    if known is not None and known.epoch == entry.producer_epoch:
        kept = known.batches[1 - BATCHES_KEPT :]
    batch = (entry.base_sequence, _last_sequence(entry), base_offset)
    return ProducerState(entry.producer_epoch, (*kept, batch), now_ms)


def fenced(entry: Entry, txn: TxnRow | None) -> ErrorCode:
    """Whether the epoch is the transactional id's own; before anything else is looked at."""
    if txn is None:
        error = ErrorCode.INVALID_PRODUCER_ID_MAPPING if entry.is_transactional else ErrorCode.NONE
    elif not entry.is_transactional:
        error = ErrorCode.INVALID_TXN_STATE
    elif entry.producer_epoch != txn.epoch:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    else:
        error = ErrorCode.NONE
    return error


def not_in_transaction(entry: Entry, txn: TxnRow, is_open: bool) -> ErrorCode:
    """Whether the batch is part of the transaction or may become so.

    `is_open`: whether the producer has written to the partition in it before.
    """
    if txn.state in PREPARED:
        return ErrorCode.CONCURRENT_TRANSACTIONS
    if is_open or entry.adds_partition:
        return ErrorCode.NONE
    announced = txn.state == "ongoing" and announces(txn, entry.topic_id, entry.partition)
    return ErrorCode.NONE if announced else ErrorCode.INVALID_TXN_STATE


_OUT_OF_ORDER = refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)


def _last_sequence(entry: Entry) -> int:
    return (entry.base_sequence + entry.last_offset_delta) % _SEQUENCES
