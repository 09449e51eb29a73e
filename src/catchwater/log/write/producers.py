"""What a producer may append: sequences, epochs, and where its transaction stands.

Pure rules over what is known of a producer on one partition (`ProducerState`) and of its
transactional id, if it has one (`TxnRow`). `sequence.py` asks them for every batch, in order.

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
  In a transaction of version 2, where every epoch begins with 0, it may not (KIP-890).

A producer id that belongs to a transactional id appends in transactions only, with exactly the
epoch the catalog has for it, so what is late is refused on every partition alike:

- any other epoch is INVALID_PRODUCER_EPOCH, an id nobody has INVALID_PRODUCER_ID_MAPPING;
- while the end of the last transaction is being written, CONCURRENT_TRANSACTIONS;
- version 1 announces its partitions (AddPartitionsToTxn): others are INVALID_TXN_STATE;
- version 2 begins the transaction, and adds the partition, with the batch itself (KIP-890).
"""

from collections.abc import Mapping
from typing import NamedTuple

from catchwater.catalog.rows import TxnRow
from catchwater.log.format.chunk import Entry
from catchwater.log.write.txn import PREPARED, announces
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


class Result(NamedTuple):
    """The answer to one batch; a duplicate is a success with its first offset."""

    error: ErrorCode
    base_offset: int
    duplicate: bool = False


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
