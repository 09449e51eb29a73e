"""Where a transactional id may go, and that random interleavings end every transaction whole."""

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.catalog.rows import AbortedRow, TxnRow
from catchwater.log.format.chunk import ADDS_PARTITION, COMMIT, CONTROL, TRANSACTIONAL, Entry
from catchwater.log.write import txn
from catchwater.log.write.sequence import PartitionState, Sequenced, sequence
from catchwater.log.write.txn import LAST_EPOCH, PREPARED, TxnRefused, Txns
from catchwater.wire.errors import ErrorCode

T1 = b"1" * 16
NAME = T1.hex()
OK = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED


def row(state: str = "empty", epoch: int = 4, **changes: Any) -> TxnRow:
    plain = TxnRow("id", 7, epoch, "empty", 1000, 50, 1, -1, 50, ())
    return plain._replace(state=state, **changes)


def refusal(call: Any) -> ErrorCode:
    with pytest.raises(TxnRefused) as caught:
        call()
    return caught.value.code


# --- one id --------------------------------------------------------------------------------------


def test_a_new_id_begins_with_a_fresh_producer_id_and_epoch_0() -> None:
    assert txn.initialised(None, "id", 9, 1000, None) == TxnRow(
        "id", 9, 0, "empty", 1000, -1, 1, -1, -1, ()
    )


@pytest.mark.parametrize("state", ["empty", "complete_commit", "complete_abort"])
def test_a_newcomer_raises_the_epoch(state: str) -> None:
    new = txn.initialised(row(state), "id", 9, 2000, None)
    assert (new.producer_id, new.epoch, new.state, new.timeout_ms) == (7, 5, "empty", 2000)


def test_a_newcomer_first_aborts_what_is_open() -> None:
    assert txn.initialised(row("ongoing"), "id", 9, 1, None) == row("prepare_abort", 5)
    assert txn.initialised(row("prepare_commit"), "id", 9, 1, None) == row("prepare_commit")


def test_a_newcomer_that_names_another_producer_is_fenced() -> None:
    for expected in [(7, 3), (7, 5), (8, 4)]:
        assert refusal(lambda e=expected: txn.initialised(row(), "id", 9, 1, e)) == (
            ErrorCode.PRODUCER_FENCED
        )
    assert txn.initialised(row(), "id", 9, 1, (7, 4)).epoch == 5


def test_a_producer_whose_new_epoch_was_lost_is_given_it_again() -> None:
    given = txn.initialised(row(), "id", 9, 1000, (7, 4))
    assert (given.epoch, given.last_epoch) == (5, 4)
    assert txn.initialised(given, "id", 9, 1000, (7, 4)) == given
    assert refusal(lambda: txn.initialised(given, "id", 9, 1, (7, 3))) == FENCED
    # Who has begun a transaction with it must have been told.
    begun = txn.announced(given, (7, 5), [], 90)
    assert refusal(lambda: txn.initialised(begun, "id", 9, 1, (7, 4))) == FENCED
    # Nobody has an epoch before the first one.
    assert refusal(lambda: txn.initialised(row(), "id", 9, 1, (7, -1))) == FENCED


def test_a_producer_that_a_newcomer_has_fenced_is_given_nothing_again() -> None:
    given = txn.initialised(row(), "id", 9, 1000, (7, 4))
    newcomer = txn.initialised(given, "id", 9, 1000, None)
    assert (newcomer.epoch, newcomer.last_epoch) == (6, -1)
    for expected in [(7, 4), (7, 5)]:
        assert refusal(lambda e=expected: txn.initialised(newcomer, "id", 9, 1, e)) == FENCED


def test_a_producer_that_has_its_own_transaction_aborted_gets_the_epoch_of_the_abort() -> None:
    prepared = txn.initialised(row("ongoing"), "id", 9, 1, (7, 4))
    assert (prepared.state, prepared.epoch, prepared.last_epoch) == ("prepare_abort", 5, 4)
    assert txn.initialised(prepared, "id", 9, 1, (7, 4)) == prepared
    given = txn.initialised(txn.completed(prepared), "id", 9, 1, (7, 4))
    assert (given.state, given.epoch) == ("empty", 5)
    last = row("ongoing", epoch=LAST_EPOCH - 1)
    prepared = txn.initialised(last, "id", 9, 1, (7, LAST_EPOCH - 1))
    given = txn.initialised(txn.completed(prepared), "id", 9, 1, (7, LAST_EPOCH - 1))
    assert (given.producer_id, given.epoch, given.last_epoch) == (9, 0, -1)


def test_a_producer_whose_end_was_answered_in_vain_may_ask_for_its_epoch_instead() -> None:
    prepared = txn.ended(row("ongoing"), (7, 4), committed=True, version=2)
    given = txn.initialised(txn.completed(prepared), "id", 9, 1, (7, 4))
    assert (given.state, given.epoch) == ("empty", 5)
    late = txn.completed(txn.aborted_by_us(row("ongoing")))
    assert refusal(lambda: txn.initialised(late, "id", 9, 1, (7, 4))) == FENCED


def test_when_the_epochs_are_used_up_there_is_a_new_producer_id() -> None:
    new = txn.initialised(row(epoch=LAST_EPOCH - 1), "id", 9, 1, None)
    assert (new.producer_id, new.epoch) == (9, 0)
    # The last epoch fences; nobody ever produces with it.
    fenced = txn.initialised(row("ongoing", epoch=LAST_EPOCH - 1), "id", 9, 1, None)
    assert (fenced.producer_id, fenced.epoch) == (7, LAST_EPOCH)


def test_partitions_are_announced_once_and_begin_the_transaction() -> None:
    first = txn.announced(row(), (7, 4), [(NAME, 1)], 40)
    assert (first.state, first.version, first.started_ms) == ("ongoing", 1, 51), "time only grows"
    second = txn.announced(first, (7, 4), [(NAME, 0), (NAME, 1)], 90)
    assert second == first._replace(partitions=((NAME, 1), (NAME, 0)))


def test_positions_of_version_1_need_an_open_transaction() -> None:
    def commit(implicit: bool) -> TxnRow:
        return txn.with_offsets(row(), (7, 4), implicit=implicit, now_ms=90)

    assert refusal(lambda: commit(False)) == ErrorCode.INVALID_TXN_STATE
    assert (commit(True).state, commit(True).version) == ("ongoing", 2)


@pytest.mark.parametrize(
    ("producer", "error"),
    [
        ((8, 4), ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        ((7, 3), ErrorCode.PRODUCER_FENCED),
        ((7, 5), ErrorCode.PRODUCER_FENCED),
    ],
)
def test_who_is_not_the_producer_changes_nothing(
    producer: tuple[int, int], error: ErrorCode
) -> None:
    now = row("ongoing")
    assert refusal(lambda: txn.announced(now, producer, [], 1)) == error
    assert refusal(lambda: txn.with_offsets(now, producer, implicit=True, now_ms=1)) == error
    assert refusal(lambda: txn.ended(now, producer, committed=True, version=2)) == error


@pytest.mark.parametrize("state", sorted(PREPARED))
def test_nothing_is_added_while_the_end_is_written(state: str) -> None:
    error = refusal(lambda: txn.announced(row(state), (7, 4), [], 1))
    assert error == ErrorCode.CONCURRENT_TRANSACTIONS


ENDS = [
    # version 1: state, epoch asked with, committed -> outcome
    (1, "ongoing", 4, True, ("prepare_commit", 4)),
    (1, "ongoing", 4, False, ("prepare_abort", 4)),
    (1, "prepare_commit", 4, True, ("prepare_commit", 4)),
    (1, "prepare_commit", 4, False, ErrorCode.INVALID_TXN_STATE),
    (1, "complete_commit", 4, True, ("complete_commit", 4)),
    (1, "complete_commit", 4, False, ErrorCode.INVALID_TXN_STATE),
    (1, "complete_abort", 4, False, ("complete_abort", 4)),
    (1, "empty", 4, True, ErrorCode.INVALID_TXN_STATE),
    (1, "complete_commit", 3, True, ErrorCode.PRODUCER_FENCED),
    # version 2: every end raises the epoch, and may be asked for again with the one before
    (2, "ongoing", 4, True, ("prepare_commit", 5)),
    (2, "ongoing", 4, False, ("prepare_abort", 5)),
    (2, "prepare_commit", 3, True, ("prepare_commit", 4)),
    (2, "complete_commit", 3, True, ("complete_commit", 4)),
    (2, "complete_commit", 3, False, ErrorCode.INVALID_TXN_STATE),
    (2, "complete_abort", 3, False, ("complete_abort", 4)),
    (2, "complete_abort", 3, True, ErrorCode.INVALID_TXN_STATE),
    (2, "complete_commit", 4, True, ErrorCode.INVALID_TXN_STATE),
    (2, "complete_commit", 4, False, ("complete_abort", 5)),
    (2, "empty", 4, False, ("complete_abort", 5)),
    (2, "empty", 4, True, ErrorCode.INVALID_TXN_STATE),
    (2, "empty", 3, True, ErrorCode.PRODUCER_FENCED),
    # F23: an end that is late arrives in the next transaction
    (2, "ongoing", 3, True, ErrorCode.PRODUCER_FENCED),
    (2, "complete_commit", 2, True, ErrorCode.PRODUCER_FENCED),
]


@pytest.mark.parametrize(("version", "state", "epoch", "committed", "outcome"), ENDS)
def test_an_end_is_taken_once_and_answered_again(
    version: int, state: str, epoch: int, committed: bool, outcome: Any
) -> None:
    now = row(state, last_epoch=3 if version == 2 and state not in ("empty", "ongoing") else -1)

    def end() -> TxnRow:
        return txn.ended(now, (7, epoch), committed=committed, version=version)

    if isinstance(outcome, ErrorCode):
        assert refusal(end) == outcome
    else:
        assert (end().state, end().epoch) == outcome


@pytest.mark.parametrize("committed", [True, False])
def test_an_end_that_a_fence_was_faster_than_is_no_repetition(committed: bool) -> None:
    """Found by kills before every call: the epoch had risen by one, as if by the end itself."""

    def refused(now: TxnRow, epoch: int) -> ErrorCode:
        return refusal(lambda: txn.ended(now, (7, epoch), committed=committed, version=2))

    fenced = txn.aborted_by_us(row("ongoing"))
    assert refused(fenced, 4) == refused(txn.completed(fenced), 4) == FENCED
    # Of two producers the newer one speaks version 1, whose end raises no epoch.
    newcomer = txn.initialised(row(), "id", 9, 1000, None)
    begun = txn.announced(newcomer, (7, 5), [], 60)
    ended = txn.ended(begun, (7, 5), committed=committed, version=1)
    assert refused(ended, 4) == refused(txn.completed(ended), 4) == FENCED


# --- any interleaving ----------------------------------------------------------------------------


def test_a_batch_of_the_next_transaction_waits_for_the_marker_behind_it() -> None:
    """Found by simulation seed 365: the marker ended the next transaction with this one."""
    states = {(T1, index): PartitionState(0, 5, 9) for index in (0, 1)}
    for state in states.values():
        state.open_txns[7] = 3
    txns = {7: row("prepare_abort", epoch=5, version=2)}
    marker_bits, batch_bits = TRANSACTIONAL | CONTROL, TRANSACTIONAL | ADDS_PARTITION
    marker = [Entry(T1, p, 100, 78, 7, 5, -1, 0, 1, 50, marker_bits) for p in (0, 1)]
    batch = [Entry(T1, p, 100, 70, 7, 5, 0, 0, 1, 60, batch_bits) for p in (0, 1)]
    done = sequence([marker[0], batch[0], batch[1], marker[1]], states, txns, 60)
    assert [result.error for result in done.results] == [
        OK,
        OK,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        OK,
    ]
    assert [(at.partition, at.first_offset, at.last_offset) for at in done.aborted] == [
        (0, 3, 5),
        (1, 3, 5),
    ]
    assert states[T1, 0].open_txns == {7: 6}
    assert states[T1, 1].open_txns == {}
    (again,) = sequence([batch[1]], states, txns, 61).results
    assert (again.error, again.base_offset) == (OK, 6)


@dataclass
class World:
    """Partitions, two transactional ids, and what their records should come to."""

    states: dict[tuple[bytes, int], PartitionState] = field(
        default_factory=lambda: {(T1, index): PartitionState() for index in range(3)}
    )
    txns: Txns = field(
        default_factory=lambda: {
            pid: TxnRow(f"id{pid}", pid, 0, "empty", 1000, -1, 1, -1, -1, ()) for pid in (1, 2)
        }
    )
    events: list[Any] = field(default_factory=list)
    now_ms: int = 0
    sequences: dict[tuple[int, int, int], int] = field(default_factory=dict)
    open: dict[int, list[tuple[int, int]]] = field(default_factory=lambda: {1: [], 2: []})
    """By producer: (partition, offset) of its records that are not decided."""
    outcome: dict[tuple[int, int], bool] = field(default_factory=dict)
    """(partition, offset) -> committed."""
    aborted: list[AbortedRow] = field(default_factory=list)
    markers: list[list[Entry]] = field(default_factory=list)

    def take(self, entries: list[Entry]) -> Sequenced:
        self.now_ms += 1
        self.events.append((entries, self.now_ms))
        done = sequence(entries, self.states, self.txns, self.now_ms)
        self.aborted += done.aborted
        return done

    def set_row(self, new: TxnRow) -> None:
        self.events.append(new)
        self.txns[new.producer_id] = new

    def batch(self, pid: int, partition: int, epoch: int, base: int, version: int) -> Entry:
        bits = TRANSACTIONAL | (ADDS_PARTITION if version == 2 else 0)
        return Entry(T1, partition, 100, 70, pid, epoch, base, 0, 1, self.now_ms, bits)

    def produce(self, pid: int, partition: int, version: int) -> None:
        now = self.txns[pid]
        if version == 1:
            self.set_row(txn.announced(now, (pid, now.epoch), [(NAME, partition)], self.now_ms))
        at = (pid, partition, now.epoch)
        base = self.sequences.get(at, 0)
        (result,) = self.take([self.batch(pid, partition, now.epoch, base, version)]).results
        assert result.error is OK
        self.sequences[at] = base + 1
        self.open[pid].append((partition, result.base_offset))

    def zombie(self, pid: int, partition: int, version: int, back: int) -> None:
        epoch = self.txns[pid].epoch - back
        (result,) = self.take([self.batch(pid, partition, epoch, 0, version)]).results
        assert result.error is ErrorCode.INVALID_PRODUCER_EPOCH

    def end(self, pid: int, committed: bool, version: int, fence: bool) -> None:
        now = self.txns[pid]
        if now.state != "ongoing":
            return
        if fence:
            self.set_row(txn.aborted_by_us(now))
            committed = False
        else:
            self.set_row(txn.ended(now, (pid, now.epoch), committed=committed, version=version))
        bits = TRANSACTIONAL | CONTROL | (COMMIT if committed else 0)
        now = self.txns[pid]
        entries = [
            Entry(T1, index, 100, 78, pid, now.epoch, -1, 0, 1, now.started_ms, bits)
            for (_, index), state in self.states.items()
            if pid in state.open_txns
        ]
        done = self.take(entries)
        assert all(result.error is OK for result in done.results)
        assert [(end.producer_id, end.committed) for end in done.ended] == [(pid, committed)]
        self.outcome |= dict.fromkeys(self.open[pid], committed)
        self.open[pid] = []
        self.markers.append(entries)

    def late_end(self, which: int) -> None:
        """A marker chunk of an earlier end is sequenced once more: nothing may come of it."""
        if not self.markers:
            return
        before = copy.deepcopy((self.states, self.txns))
        done = self.take(self.markers[which % len(self.markers)])
        assert not done.ended
        assert not done.runs
        assert (self.states, self.txns) == before


steps = st.one_of(
    st.tuples(st.just("produce"), st.sampled_from([1, 2]), st.integers(0, 2), st.integers(1, 2)),
    st.tuples(
        st.just("zombie"),
        st.sampled_from([1, 2]),
        st.integers(0, 2),
        st.integers(1, 2),
        st.integers(1, 2),
    ),
    st.tuples(
        st.just("end"), st.sampled_from([1, 2]), st.booleans(), st.integers(1, 2), st.booleans()
    ),
    st.tuples(st.just("late_end"), st.integers(0, 9)),
)


def check(world: World) -> None:
    for (_, partition), state in world.states.items():
        undecided = [at for found in world.open.values() for p, at in found if p == partition]
        stable = min(undecided, default=state.high_watermark)
        assert state.last_stable_offset == stable
    for (partition, offset), committed in world.outcome.items():
        covering = [
            row
            for row in world.aborted
            if row.partition == partition and row.first_offset <= offset < row.last_offset
        ]
        # Another producer's aborted range may lie over it, one of its own only if it was aborted.
        owners = {row.producer_id for row in covering}
        owner = world.owner[partition, offset]
        assert (owner in owners) is not committed


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40), st.integers(0, 60))
def test_every_transaction_ends_whole_and_a_replay_is_the_same(
    script: list[Any], stop: int
) -> None:
    world = World()
    saved: Any = None
    owner: dict[tuple[int, int], int] = {}
    for kind, *arguments in script:
        if saved is None and len(world.events) >= stop:
            saved = len(world.events), copy.deepcopy((world.states, world.txns))
        before = {pid: len(found) for pid, found in world.open.items()}
        getattr(world, kind)(*arguments)
        for pid, found in world.open.items():
            owner |= dict.fromkeys(found[before[pid] :], pid)
    world.owner = owner  # type: ignore[attr-defined]
    check(world)
    at, (states, txns) = saved or (0, (World().states, World().txns))
    for event in world.events[at:]:
        if isinstance(event, TxnRow):
            txns[event.producer_id] = event
        else:
            sequence(event[0], states, txns, event[1])
    assert (states, txns) == (world.states, world.txns)
