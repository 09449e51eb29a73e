"""The only place where offsets are assigned.

Pure: partition and producer states plus a chunk's index in; results, runs and new states out.
The same chunks in the same order always give the same offsets, which is what makes the
write-ahead log the truth and the catalog its replay. No clock: time is the chunk's own.

Idempotence follows Apache Kafka (`ProducerAppendInfo.checkProducerEpoch`, `checkSequence` and
`ProducerStateEntry.findDuplicateBatch`; KIP-98, KIP-360):

- an older epoch is INVALID_PRODUCER_EPOCH;
- a batch equal in epoch and sequences to one of the last five is a duplicate: success, with the
  offset it got the first time;
- a newer epoch must begin with sequence 0, else OUT_OF_ORDER_SEQUENCE_NUMBER;
- in the same epoch the sequence must follow the last one (after 2^31-1 comes 0), else
  OUT_OF_ORDER_SEQUENCE_NUMBER;
- a producer nothing is known of (new, or forgotten after a day of silence) may begin with any
  sequence, so that losing its state can never block it; UNKNOWN_PRODUCER_ID is not answered.

Kafka's stricter rule for transactional producers (KIP-890) comes with transactions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from catchwater.catalog.rows import (
    Changes,
    ObjectRow,
    PartitionKey,
    PartitionRow,
    ProducerRow,
    RunRow,
    Snapshot,
)
from catchwater.log.format.chunk import Chunk, Entry
from catchwater.wire.errors import ErrorCode

BATCHES_KEPT = 5
PRODUCER_EXPIRY_MS = 24 * 60 * 60 * 1000
"""Kafka's default of `producer.id.expiration.ms`."""


class ProducerState(NamedTuple):
    """A producer's standing on one partition."""

    epoch: int
    batches: tuple[tuple[int, int, int], ...]
    """At most five, oldest first: (base sequence, last sequence, base offset). Never empty."""
    last_ms: int


@dataclass(slots=True)
class PartitionState:
    """A partition between two chunks. The high watermark never goes back."""

    log_start: int = 0
    high_watermark: int = 0
    bytes: int = 0
    earliest_timestamp: int = -1
    """Largest timestamp of the oldest batch or run, ms; -1 when the partition holds nothing."""
    producers: dict[int, ProducerState] = field(default_factory=dict)


class Result(NamedTuple):
    """The answer to one batch; a duplicate is a success with its first offset."""

    error: ErrorCode
    base_offset: int
    duplicate: bool = False


class NewRun(NamedTuple):
    """Accepted batches of one partition that lie side by side in the chunk."""

    key: PartitionKey
    base_offset: int
    last_offset: int
    byte_offset: int
    byte_size: int
    max_timestamp: int
    record_count: int


class Sequenced(NamedTuple):
    """What a chunk came to: one result per entry, the runs, and whose state has changed."""

    results: list[Result]
    runs: list[NewRun]
    changed: dict[PartitionKey, set[int]]
    """Partition -> producer ids whose standing changed."""


def sequence(
    entries: Sequence[Entry], states: Mapping[PartitionKey, PartitionState], created_ms: int
) -> Sequenced:
    """Assign offsets to a chunk's batches, in index order, and move the states along.

    A partition without a state answers UNKNOWN_TOPIC_OR_PARTITION.
    """
    results: list[Result] = []
    runs: list[NewRun] = []
    changed: dict[PartitionKey, set[int]] = {}
    for entry in entries:
        key = (entry.topic_id, entry.partition)
        state = states.get(key)
        if state is None:
            results.append(_UNKNOWN_PARTITION)
            continue
        refused = _known_or_refused(entry, state, created_ms) if entry.producer_id >= 0 else None
        if refused is not None:
            results.append(refused)
            continue
        base_offset = state.high_watermark
        results.append(Result(ErrorCode.NONE, base_offset))
        if state.bytes == 0:
            state.earliest_timestamp = entry.max_timestamp
        state.high_watermark = base_offset + entry.last_offset_delta + 1
        state.bytes += entry.size_bytes
        producers = changed.setdefault(key, set())
        if entry.producer_id >= 0:
            producers.add(entry.producer_id)
            _remember(entry, state, base_offset, created_ms)
        _extend(runs, key, entry, base_offset)
    return Sequenced(results, runs, changed)


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
        done = sequence(chunk.entries, after, chunk.created_ms)
        row = ObjectRow(object_key, "chunk", "live", chunk.size_bytes, chunk.created_ms)
        changes.append(catalog_changes(done, after, row, 0))
    return after, Changes(
        runs=[run for change in changes for run in change.runs],
        partitions=[partition_row(key, state) for key, state in after.items()],
        objects=[row for change in changes for row in change.objects],
    )


def catalog_changes(
    done: Sequenced, states: Mapping[PartitionKey, PartitionState], object_row: ObjectRow, at: int
) -> Changes:
    """What the catalog has to store of a sequenced chunk that begins at byte `at` of an object."""
    runs = [
        RunRow(
            *run.key,
            run.base_offset,
            run.last_offset,
            object_row.key,
            at + run.byte_offset,
            run.byte_size,
            run.max_timestamp,
            run.record_count,
        )
        for run in done.runs
    ]
    producers = [
        ProducerRow._make((*key, producer_id, *states[key].producers[producer_id]))
        for key, changed in done.changed.items()
        for producer_id in changed
    ]
    partitions = [partition_row(key, states[key]) for key in done.changed]
    return Changes(runs, partitions, producers, [object_row])


def states_of(snapshot: Snapshot) -> dict[PartitionKey, PartitionState]:
    """The states that the catalog knows."""
    states = {row[:2]: PartitionState(*row[2:]) for row in snapshot.partitions}
    for topic_id, index, producer_id, *standing in snapshot.producers:
        states[topic_id, index].producers[producer_id] = ProducerState._make(standing)
    return states


def partition_row(key: PartitionKey, state: PartitionState) -> PartitionRow:
    """A state as the catalog keeps it."""
    return PartitionRow(
        *key, state.log_start, state.high_watermark, state.bytes, state.earliest_timestamp
    )


_UNKNOWN_PARTITION = Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
_OLD_EPOCH = Result(ErrorCode.INVALID_PRODUCER_EPOCH, -1)
_OUT_OF_ORDER = Result(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
_SEQUENCES = 2**31


def _standing(state: PartitionState, producer_id: int, now_ms: int) -> ProducerState | None:
    """What is known of a producer; one that was silent for too long is as good as new."""
    producer = state.producers.get(producer_id)
    if producer is None or producer.last_ms + PRODUCER_EXPIRY_MS < now_ms:
        return None
    return producer


def _last_sequence(entry: Entry) -> int:
    return (entry.base_sequence + entry.last_offset_delta) % _SEQUENCES


def _known_or_refused(entry: Entry, state: PartitionState, now_ms: int) -> Result | None:
    """The answer to a duplicate or to a batch that may not be appended; None: append it."""
    producer = _standing(state, entry.producer_id, now_ms)
    if producer is None:
        return None
    if entry.producer_epoch < producer.epoch:
        return _OLD_EPOCH
    if entry.producer_epoch > producer.epoch:
        return None if entry.base_sequence == 0 else _OUT_OF_ORDER
    last = _last_sequence(entry)
    for base_sequence, last_sequence, base_offset in producer.batches:
        if base_sequence == entry.base_sequence and last_sequence == last:
            return Result(ErrorCode.NONE, base_offset, duplicate=True)
    expected = (producer.batches[-1][1] + 1) % _SEQUENCES
    return None if entry.base_sequence == expected else _OUT_OF_ORDER


def _remember(entry: Entry, state: PartitionState, base_offset: int, now_ms: int) -> None:
    producer = _standing(state, entry.producer_id, now_ms)
    kept: tuple[tuple[int, int, int], ...] = ()
    if producer is not None and producer.epoch == entry.producer_epoch:
        kept = producer.batches[1 - BATCHES_KEPT :]
    batch = (entry.base_sequence, _last_sequence(entry), base_offset)
    state.producers[entry.producer_id] = ProducerState(entry.producer_epoch, (*kept, batch), now_ms)


def _extend(runs: list[NewRun], key: PartitionKey, entry: Entry, base_offset: int) -> None:
    """Add an accepted batch to the last run if it lies behind it, else begin a run."""
    last_offset = base_offset + entry.last_offset_delta
    if runs:
        run = runs[-1]
        if run.key == key and run.byte_offset + run.byte_size == entry.byte_offset:
            assert run.last_offset + 1 == base_offset, "a run's offsets are consecutive"
            runs[-1] = NewRun(
                key,
                run.base_offset,
                last_offset,
                run.byte_offset,
                run.byte_size + entry.size_bytes,
                max(run.max_timestamp, entry.max_timestamp),
                run.record_count + entry.record_count,
            )
            return
    runs.append(
        NewRun(
            key,
            base_offset,
            last_offset,
            entry.byte_offset,
            entry.size_bytes,
            entry.max_timestamp,
            entry.record_count,
        )
    )
