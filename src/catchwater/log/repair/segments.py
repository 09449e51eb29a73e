"""What the batches in a segment tell of their partition, where no catalog tells it."""

from collections.abc import Iterator

from catchwater.catalog.rows import RunRow
from catchwater.log.format.segment import batches_of, read_footer
from catchwater.log.write.producers import BATCHES_KEPT, ProducerState
from catchwater.log.write.sequence import PartitionState
from catchwater.objects.base import ObjectStore
from catchwater.wire.batch import BatchHeader


def headers(objects: ObjectStore, run: RunRow) -> Iterator[BatchHeader]:
    """The headers of a segment's batches, with final offsets; reads the whole segment.

    Raises `DamagedObject` or `StoreError`.
    """
    footer = read_footer(objects, run.object)
    data = objects.get_range(run.object, run.byte_offset, run.byte_size)
    return (batch.header for batch in batches_of(footer, run.object, data))


def remember(header: BatchHeader, state: PartitionState, now_ms: int) -> None:
    """What a batch in a segment tells of its producer and of its transaction."""
    producer_id = header.producer_id
    if header.is_control:
        state.open_txns.pop(producer_id, None)
    elif header.is_transactional:
        state.open_txns.setdefault(producer_id, header.base_offset)
    if producer_id >= 0 and not header.is_control:
        known = state.producers.get(producer_id)
        older = known.batches if known and known.epoch == header.producer_epoch else ()
        last = (header.base_sequence + header.last_offset_delta) % 2**31
        batches = (*older, (header.base_sequence, last, header.base_offset))[-BATCHES_KEPT:]
        state.producers[producer_id] = ProducerState(header.producer_epoch, batches, now_ms)
