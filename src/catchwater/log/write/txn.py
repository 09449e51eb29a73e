"""Where a transactional id stands, and what may become of it: Kafka's rules, pure.

Every function takes the id's row as the catalog has it and gives the row it is to have; what may
not be is refused with the code that Apache Kafka's coordinator answers (`TransactionCoordinator`,
`TransactionMetadata`; KIP-98, KIP-360, KIP-890). The caller stores the row in the same
transaction of the catalog that gave it the old one.

    empty ── a batch, a partition or a position ──▶ ongoing ── end ──▶ prepare_* ──▶ complete_*
      ▲                                                │ time is out, or a newcomer: epoch + 1
      └───────────────── a newcomer: epoch + 1 ◀───────┴──▶ prepare_abort ──▶ complete_abort

Once prepared, the outcome is decided and only the markers are missing. In version 2 every end
raises the epoch, so that nothing late can be taken for a part of the next transaction.
"""

from collections.abc import Iterable

from catchwater.catalog.rows import TxnRow, TxnState
from catchwater.config import CatchwaterError
from catchwater.log.format.chunk import Entry
from catchwater.wire.errors import ErrorCode

Txns = dict[int, TxnRow]
"""Producer id -> its transactional id, for the producers that have one."""

IDLE: frozenset[TxnState] = frozenset(("empty", "complete_commit", "complete_abort"))
"""States in which a transaction may begin."""
PREPARED: frozenset[TxnState] = frozenset(("prepare_commit", "prepare_abort"))

LAST_EPOCH = 2**15 - 1
"""No producer is given this epoch: it fences the last one, and a new producer id follows."""


class TxnRefused(CatchwaterError):
    """What the coordinator refuses; `code` is what the reply says."""

    def __init__(self, code: ErrorCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def initialised(
    row: TxnRow | None,
    transactional_id: str,
    fresh_id: int,
    timeout_ms: int,
    expected: tuple[int, int] | None,
) -> TxnRow:
    """The row for a producer that begins: a higher epoch, or `fresh_id` where none is left.

    A transaction that is open or prepared must end first: the row is then a prepared one.
    `expected` is the producer id and epoch that a producer believes it has (KIP-360); one that
    was given the next epoch, and has not used it, has lost the reply and is given it again.
    """
    if row is None:
        return TxnRow(transactional_id, fresh_id, 0, "empty", timeout_ms, -1, 1, -1, -1, ())
    has_last = row.last_epoch >= 0
    is_repeated = has_last and expected == (row.producer_id, row.last_epoch)
    if expected not in (None, (row.producer_id, row.epoch)) and not is_repeated:
        raise _fenced(row)
    if row.state in PREPARED:
        return row
    last_epoch = -1 if expected is None else expected[1]
    if row.state == "ongoing":
        return aborted_by_us(row)._replace(last_epoch=last_epoch)
    epoch = row.epoch if is_repeated else row.epoch + 1
    row = row._replace(state="empty", epoch=epoch, last_epoch=last_epoch, timeout_ms=timeout_ms)
    return renewed(row, fresh_id) if row.epoch >= LAST_EPOCH else row


def renewed(row: TxnRow, fresh_id: int) -> TxnRow:
    """The row of an id whose epochs are used up, with a new producer id."""
    assert row.state in IDLE, "nothing of the old producer id is open"
    return row._replace(producer_id=fresh_id, epoch=0, last_epoch=-1)


def aborted_by_us(row: TxnRow) -> TxnRow:
    """An open transaction whose producer is gone or superseded: it is fenced by the epoch."""
    return row._replace(state="prepare_abort", epoch=row.epoch + 1, last_epoch=-1)


def announced(
    row: TxnRow | None,
    producer: tuple[int, int],
    partitions: Iterable[tuple[str, int]],
    now_ms: int,
) -> TxnRow:
    """The row once version 1 has named partitions (none for AddOffsetsToTxn); begins it."""
    row = _writable(row, producer)
    if row.state in IDLE:
        row = begun(row, 1, now_ms)
    new = set(partitions).difference(row.partitions)
    return row._replace(partitions=(*row.partitions, *sorted(new))) if new else row


def with_offsets(
    row: TxnRow | None, producer: tuple[int, int], *, implicit: bool, now_ms: int
) -> TxnRow:
    """The row under which positions may wait for the end; version 2 begins it so."""
    row = _writable(row, producer)
    if row.state == "ongoing":
        return row
    if not implicit:
        raise _invalid(row, "has no open transaction that positions could be part of")
    return begun(row, 2, now_ms)


def ended(
    row: TxnRow | None, producer: tuple[int, int], *, committed: bool, version: int
) -> TxnRow:
    """The row to go on with: a prepared one has its markers to be written, an idle one is done.

    The same end may be asked for again (a reply was lost): in version 2 with the epoch before, if
    it was the producer's own end that raised it, and not a newcomer or the time that was out.
    """
    row = known(row, producer[0])
    wanted: tuple[TxnState, TxnState] = (
        ("prepare_commit", "complete_commit") if committed else ("prepare_abort", "complete_abort")
    )
    has_ended = row.state not in ("empty", "ongoing")
    is_repeated = version >= 2 and has_ended and producer[1] == row.last_epoch
    if producer[1] != row.epoch and not is_repeated:
        raise _fenced(row)
    if row.state == "ongoing":
        return _raised(row, wanted[0]) if version >= 2 else row._replace(state=wanted[0])
    if row.state in wanted and (is_repeated or version == 1):
        return row
    if row.state in IDLE and version >= 2 and not committed and not is_repeated:
        # An abort of nothing; the client counts on the raised epoch all the same.
        return _raised(row, "complete_abort")
    raise _invalid(row, "cannot end that way")


def begun(row: TxnRow, version: int, now_ms: int) -> TxnRow:
    """The row once a transaction has begun; its start time is later than any earlier one's."""
    started_ms = max(now_ms, row.started_ms + 1)
    return row._replace(
        state="ongoing",
        started_ms=started_ms,
        version=version,
        last_epoch=-1,
        updated_ms=now_ms,
        partitions=(),
    )


def announces(row: TxnRow, topic_id: bytes, partition: int) -> bool:
    """Whether AddPartitionsToTxn has named the partition in this transaction."""
    return (topic_id.hex(), partition) in row.partitions


def is_end(entry: Entry, row: TxnRow | None) -> bool:
    """Whether a control batch is the end that was prepared for exactly this transaction.

    A marker has its transaction's start as its timestamp. In version 1 nothing else distinguishes
    two transactions of a producer, because it keeps its epoch.
    """
    if row is None:
        return False
    wanted: TxnState = "prepare_commit" if entry.is_commit else "prepare_abort"
    prepared = (row.state, row.epoch, row.started_ms)
    return prepared == (wanted, entry.producer_epoch, entry.max_timestamp)


def completed(row: TxnRow) -> TxnRow:
    """The row once the end is written."""
    assert row.state in PREPARED, row
    state: TxnState = "complete_commit" if row.state == "prepare_commit" else "complete_abort"
    return row._replace(state=state, partitions=())


def known(row: TxnRow | None, producer_id: int) -> TxnRow:
    """The row of an id that belongs to this producer id, or INVALID_PRODUCER_ID_MAPPING."""
    if row is None or row.producer_id != producer_id:
        raise TxnRefused(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"The transactional id does not belong to producer id {producer_id}.",
        )
    return row


def _raised(row: TxnRow, state: TxnState) -> TxnRow:
    return row._replace(state=state, epoch=row.epoch + 1, last_epoch=row.epoch)


def _writable(row: TxnRow | None, producer: tuple[int, int]) -> TxnRow:
    row = known(row, producer[0])
    if producer[1] != row.epoch:
        raise _fenced(row)
    if row.state in PREPARED:
        raise TxnRefused(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"The last transaction of {row.transactional_id} is still being ended.",
        )
    return row


def _fenced(row: TxnRow) -> TxnRefused:
    return TxnRefused(
        ErrorCode.PRODUCER_FENCED,
        f"Another producer has {row.transactional_id} now, or its transaction took too long.",
    )


def _invalid(row: TxnRow, reason: str) -> TxnRefused:
    state = f"{row.transactional_id} is in state {row.state} and {reason}."
    return TxnRefused(ErrorCode.INVALID_TXN_STATE, state)
