"""Infers changes of transactional ids that were lost with the catalog, from the chunks after them.

InitProducerId, AddPartitionsToTxn and the prepare step of EndTxn change the catalog without a
chunk. A rebuild infers such a change from later chunks: a higher epoch, a partition written to
without being added, a marker. `TxnInference.adopt` updates the rows before a chunk is sequenced
again, so that no batch is refused that was accepted. The reverse can happen: only the lost catalog
knew that a late batch was refused. If the chunks contradict that it was accepted (a marker chunk
leaves its partition out, or a higher epoch comes without an end), it is reported as `uncertain`;
all other transactional batches, and batches that were refused, are a `note`.

Pure. Chunks whose order is not known are not its concern.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from catchwater.catalog.rows import PartitionKey, TxnRow
from catchwater.log.format.chunk import CONTROL, Chunk, Entry
from catchwater.log.write.sequence import (
    PartitionState,
    Result,
    Sequenced,
    known_or_refused,
    standing,
)
from catchwater.log.write.txn import (
    IDLE,
    PREPARED,
    Txns,
    aborted_by_us,
    announces,
    begun,
    completed,
    is_end,
)
from catchwater.wire.errors import ErrorCode

States = Mapping[PartitionKey, PartitionState]
_TIMEOUT_MS = 60_000
"""Kafka's default of `transaction.timeout.ms`, for ids whose timeout is not known."""


class Remark(NamedTuple):
    """A finding about a partition's offsets, both inclusive; -1: not known."""

    kind: Literal["lost", "uncertain", "note"]
    key: PartitionKey
    first_offset: int
    last_offset: int
    what: str


@dataclass(slots=True)
class _AcceptedBatches:
    first_offset: int
    last_offset: int
    is_contradicted: bool = False


@dataclass(slots=True)
class _RefusedBatches:
    kind: Literal["lost", "uncertain", "note"]
    first_offset: int
    batches: int = 0
    bytes: int = 0


class TxnInference:
    """The transactional ids of one rebuild, and the remarks about them."""

    def __init__(self, states: States, txns: Txns) -> None:
        """Both from the backup; this class updates `txns`, the sequencer the states."""
        self._states = states
        self._txns = txns
        self._open: dict[int, set[PartitionKey]] = defaultdict(set)
        for key, state in states.items():
            for producer_id in state.open_txns:
                self._open[producer_id].add(key)
        self._accepted: dict[tuple[PartitionKey, int], _AcceptedBatches] = {}
        self._refused: dict[tuple[PartitionKey, int, int, str], _RefusedBatches] = {}

    def adopt(self, chunk: Chunk, states: States) -> list[tuple[int, bool]]:
        """Update the rows to what they were when this chunk was first sequenced.

        Returns (producer id, committed) of transactions that must have ended without records.
        """
        ended: list[tuple[int, bool]] = []
        marked = {entry.producer_id: entry for entry in chunk.entries if entry.attributes & CONTROL}
        for entry in marked.values():
            ended += self._adopt_end(entry, chunk.created_ms)
        # Batches in the same chunk as the marker were also sequenced after the prepare step.
        batches = [e for e in chunk.entries if e.is_transactional and e.producer_id not in marked]
        for entry in sorted(batches, key=lambda entry: -entry.producer_epoch):
            ended += self._adopt_batch(entry, chunk.created_ms, states)
        return ended

    def watch(self, entries: Sequence[Entry], states: States, done: Sequenced) -> None:
        """Record the results of sequencing the chunk that was adopted last."""
        for row in done.opened:
            self._open[row.producer_id].add(row[:2])
        for topic_id, index, producer_id in done.closed:
            self._open[producer_id].discard((topic_id, index))
        ended = {end.producer_id for end in done.ended}
        for entry, result in zip(entries, done.results, strict=True):
            if result.error is not ErrorCode.NONE:
                self._refuse(entry, result, states, ended)
            elif entry.is_transactional and not result.duplicate:
                key = (entry.topic_id, entry.partition)
                last = result.base_offset + entry.last_offset_delta
                accepted = self._accepted.setdefault(
                    (key, entry.producer_id), _AcceptedBatches(result.base_offset, last)
                )
                accepted.last_offset = last
        for producer_id in ended:
            self._contradict(producer_id)

    def close(self) -> None:
        """Abort the transactions that are still open, else their readers would wait forever."""
        idle: Txns = {}
        for key, state in self._states.items():
            for producer_id, first_offset in state.open_txns.items():
                known = state.producers.get(producer_id)
                epoch = known.epoch if known else 0
                row = self._txns.get(producer_id) or _unknown(producer_id, epoch, -1)
                if row.state in IDLE:
                    last = state.high_watermark - 1
                    accepted = _AcceptedBatches(first_offset, last)
                    self._accepted.setdefault((key, producer_id), accepted).is_contradicted = True
                    idle[producer_id] = row._replace(epoch=max(row.epoch, epoch))
        self._txns.update({row.producer_id: aborted_by_us(row) for row in idle.values()})

    def remarks(self) -> Iterator[Remark]:
        """What was refused, and which transactional batches were accepted."""
        for (key, producer_id, epoch, error), refused in sorted(self._refused.items()):
            what = (
                f"{refused.batches} batches ({refused.bytes} bytes) of producer {producer_id}, "
                f"epoch {epoch}, were refused when they were sequenced again: {error}."
            )
            if refused.kind != "note":
                what += " They were lost if they had been acknowledged; offsets behind may differ."
            yield Remark(refused.kind, key, refused.first_offset, -1, what)
        for (key, producer_id), accepted in sorted(self._accepted.items()):
            name = self._txns[producer_id].transactional_id
            what = f"batches of the transactional id {name} (producer {producer_id}): "
            if accepted.is_contradicted:
                what += "some may never have been acknowledged, or have had other offsets."
            else:
                what += "its epochs, ends and positions behind the backup were read from the log."
            kind: Literal["uncertain", "note"] = "uncertain" if accepted.is_contradicted else "note"
            yield Remark(kind, key, accepted.first_offset, accepted.last_offset, what)

    def _adopt_end(self, entry: Entry, now_ms: int) -> list[tuple[int, bool]]:
        producer_id, epoch = entry.producer_id, entry.producer_epoch
        row = self._txns.get(producer_id) or _unknown(producer_id, epoch, now_ms)
        started_ms = entry.max_timestamp
        is_done = row.state in IDLE and (row.epoch, row.started_ms) == (epoch, started_ms)
        if epoch < row.epoch or is_done or is_end(entry, row):
            return []
        self._txns[producer_id] = row._replace(
            state="prepare_commit" if entry.is_commit else "prepare_abort",
            epoch=epoch,
            started_ms=started_ms,
            last_epoch=-1,
        )
        is_other = row.state not in IDLE and row.started_ms != started_ms
        return [(producer_id, row.state == "prepare_commit")] if is_other else []

    def _adopt_batch(self, entry: Entry, now_ms: int, states: States) -> list[tuple[int, bool]]:
        producer_id, epoch = entry.producer_id, entry.producer_epoch
        state = states.get((entry.topic_id, entry.partition))
        if state is None:
            return []
        row = self._txns.get(producer_id) or _unknown(producer_id, epoch, now_ms)
        answer = known_or_refused(entry, standing(state.producers, producer_id, now_ms))
        if epoch < row.epoch or answer is not None:
            return []
        before = row
        if epoch > row.epoch:
            self._contradict(producer_id)
            row = row._replace(state="empty", epoch=epoch, last_epoch=-1, partitions=())
        elif row.state in PREPARED and not self._open[producer_id]:
            row = completed(row)
        if not entry.adds_partition and row.state not in PREPARED:
            row = _announced(row, entry, now_ms)
        self._txns[producer_id] = row
        is_over = before.state not in IDLE and row.started_ms != before.started_ms
        is_over |= before.state not in IDLE and row.state in IDLE
        return [(producer_id, before.state == "prepare_commit")] if is_over else []

    def _contradict(self, producer_id: int) -> None:
        """Mark batches of an ended transaction as doubtful: its end leaves out their partitions."""
        for key in self._open[producer_id]:
            if (key, producer_id) in self._accepted:
                self._accepted[key, producer_id].is_contradicted = True

    def _refuse(self, entry: Entry, result: Result, states: States, ended: set[int]) -> None:
        key = (entry.topic_id, entry.partition)
        state, row = states.get(key), self._txns.get(entry.producer_id)
        if state is None and key in self._states:
            return  # its chunks have no known order, which is reported once for all
        kind: Literal["lost", "uncertain", "note"] = "note"
        if state is None:
            kind = "lost"
        elif entry.attributes & CONTROL:
            kind = "uncertain" if entry.producer_id in ended else "note"
        elif entry.is_transactional and (row is None or entry.producer_epoch >= row.epoch):
            kind = "uncertain"
        first_offset = state.high_watermark if state else 0
        refused = self._refused.setdefault(
            (key, entry.producer_id, entry.producer_epoch, result.error.name),
            _RefusedBatches(kind, first_offset),
        )
        refused.kind = kind if refused.kind == "note" else refused.kind
        refused.batches += 1
        refused.bytes += entry.size_bytes


def _announced(row: TxnRow, entry: Entry, now_ms: int) -> TxnRow:
    """The row after AddPartitionsToTxn, which a producer of version 1 must have sent."""
    if row.state in IDLE:
        row = begun(row, 1, now_ms)
    if announces(row, entry.topic_id, entry.partition):
        return row
    named = (entry.topic_id.hex(), entry.partition)
    return row._replace(partitions=(*row.partitions, named))


def _unknown(producer_id: int, epoch: int, now_ms: int) -> TxnRow:
    """A row with a name of ours, because chunks have no transactional id; its timeout ends it."""
    name = f"rebuilt-producer-{producer_id}"
    return TxnRow(name, producer_id, epoch, "empty", _TIMEOUT_MS, -1, 2, -1, now_ms, ())
