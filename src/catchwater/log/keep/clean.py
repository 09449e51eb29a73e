"""Compaction's rules, batch by batch: what of a cleaned range stays. Pure.

As Apache Kafka's log cleaner (`Cleaner.cleanInto`, `shouldRetainRecord`; KIP-98, KIP-534):

- of every key the record with the highest offset stays, with its offset and its timestamp;
- records without a key go: such a topic takes none, they come from before it was compacted;
- a record without a value (a tombstone) stays until its delete horizon: the batch it lies in is
  given one, `delete.retention.ms` ahead, when it is first cleaned;
- what an aborted transaction wrote goes at once;
- a commit marker stays while anything of its transaction is there, then until a delete horizon.

Unlike there, an abort marker stays for good: the catalog goes on listing the transaction as
aborted, and a reader who never meets the marker would take the producer's later records for void.
A batch that cannot be opened stays as it is, and its keys count as unknown.
"""

from bisect import bisect_right
from collections.abc import Iterable
from hashlib import blake2b

from catchwater.log.format.batches import StoredBatch
from catchwater.log.format.records import (
    Record,
    Unopened,
    delete_horizon,
    is_commit_marker,
    open_records,
    rewritten,
)
from catchwater.log.format.segment import AbortedTxn
from catchwater.objects.base import Buffer
from catchwater.wire.batch import BatchHeader

_HASH_BYTES = 16


class Void:
    """Which records belong to aborted transactions."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for txn in sorted(aborted, key=lambda txn: txn.first_offset):
            spans = self._spans.setdefault(txn.producer_id, [])
            spans.append((txn.first_offset, txn.last_offset))

    def holds(self, header: BatchHeader) -> bool:
        """Whether the batch was written in a transaction that was aborted."""
        if not header.is_transactional:
            return False
        spans = self._spans.get(header.producer_id, ())
        before = bisect_right(spans, (header.base_offset, 2**63)) - 1
        return before >= 0 and header.base_offset <= spans[before][1]


class Cleaning:
    """One cleaning of one partition: first `learn` what is new, then `keep` from the oldest on.

    Holds 16 bytes and an offset for each key learned, about 150 bytes in all.
    """

    def __init__(
        self, aborted: Iterable[AbortedTxn], now_ms: int, delete_retention_ms: int
    ) -> None:
        self._void = Void(aborted)
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms
        self._latest: dict[bytes, int] = {}
        # Producers of whose transaction a batch was met since its last marker.
        self._in_transaction: set[int] = set()
        self.unopened: list[Unopened] = []
        """Batches that stay as they are because they cannot be opened."""

    def learn(self, batch: StoredBatch) -> None:
        """Take the keys of a batch that was not cleaned before."""
        header = batch.header
        if header.is_control or self._void.holds(header):
            return
        for record in self._opened(batch):
            if record.key is not None:
                offset = header.base_offset + record.offset_delta
                self._latest[_hash(record.key)] = offset

    def keep(self, batch: StoredBatch) -> tuple[BatchHeader, Buffer] | None:
        """What stays of a batch, if anything. Batches come in the order of their offsets."""
        header = batch.header
        if header.is_control:
            return self._keep_marker(batch)
        if self._void.holds(header):
            return None
        if header.is_transactional and header.record_count:
            self._in_transaction.add(header.producer_id)
        try:
            records = open_records(header, batch.data)
        except Unopened:
            return _as_it_is(batch)
        horizon_ms = delete_horizon(header)
        expired = horizon_ms is not None and horizon_ms <= self._now_ms
        kept = [
            record
            for record in records
            if self._is_latest(record, header) and not (expired and record.is_tombstone)
        ]
        if not kept:
            return None
        is_first_seen = horizon_ms is None and any(record.is_tombstone for record in kept)
        if len(kept) == len(records) and not is_first_seen:
            return _as_it_is(batch)
        return rewritten(batch, kept, self._horizon_ms if is_first_seen else None)

    def _keep_marker(self, batch: StoredBatch) -> tuple[BatchHeader, Buffer] | None:
        has_records = batch.header.producer_id in self._in_transaction
        self._in_transaction.discard(batch.header.producer_id)
        records = self._opened(batch)
        if has_records or not is_commit_marker(records):
            return _as_it_is(batch)
        horizon_ms = delete_horizon(batch.header)
        if horizon_ms is None:
            return rewritten(batch, records, self._horizon_ms)
        return None if horizon_ms <= self._now_ms else _as_it_is(batch)

    def _is_latest(self, record: Record, header: BatchHeader) -> bool:
        if record.key is None:
            return False
        offset = header.base_offset + record.offset_delta
        return self._latest.get(_hash(record.key), offset) <= offset

    def _opened(self, batch: StoredBatch) -> list[Record]:
        try:
            return open_records(batch.header, batch.data)
        except Unopened as reason:
            self.unopened.append(reason)
            return []


def _as_it_is(batch: StoredBatch) -> tuple[BatchHeader, Buffer]:
    return batch.header, batch.data


def _hash(key: memoryview) -> bytes:
    return blake2b(key, digest_size=_HASH_BYTES).digest()
