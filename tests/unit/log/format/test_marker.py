"""A marker is a control batch that every client reads, and that the index tells apart."""

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER, ControlRecord
from aiokafka.record.default_records import DefaultRecordBatch

from catchwater.log.format.chunk import CONTROL, decode, decode_index, encode, marker
from catchwater.wire.batch import check_crc


@pytest.mark.parametrize(("committed", "kind"), [(True, COMMIT_MARKER), (False, ABORT_MARKER)])
def test_a_client_reads_the_end_from_it(committed: bool, kind: ControlRecord) -> None:
    header, data = marker(7, 3, committed=committed, started_ms=55)
    check_crc(data, header)
    batch = DefaultRecordBatch(bytearray(data))
    assert (batch.is_control_batch, batch.is_transactional) == (True, True)
    assert (batch.producer_id, batch.producer_epoch, batch.max_timestamp) == (7, 3, 55)
    (record,) = list(batch)
    assert ControlRecord.parse(record.key) == kind


@pytest.mark.parametrize("committed", [True, False])
def test_the_index_tells_it_without_the_record(committed: bool) -> None:
    parts, chunk = encode([((b"t" * 16, 4), *marker(7, 3, committed=committed, started_ms=55))], 60)
    data = b"".join(parts)
    assert decode_index(data) == decode(data) == chunk
    (entry,) = chunk.entries
    assert (entry.is_transactional, entry.is_commit) == (True, committed)
    assert entry.attributes & CONTROL
    assert not entry.adds_partition
    assert data[4:6] == b"\x00\x02", "an older release must refuse it"
