"""Bugs to plant: each takes one promise out of the broker, by a small change of one function.

A simulation that cannot fail is worth nothing. Each bug names what has to catch it: classes of
anomalies in the history, or words of what the world found wrong beside it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import msgspec

from catchwater.broker.coordination.coordinator import Coordinator
from catchwater.catalog import commit as catalog_commit
from catchwater.catalog.rows import Changes, EndedTxn, ScopeRows
from catchwater.log.keep import clean, housekeeping, pack
from catchwater.log.keep.clean import Cleaning
from catchwater.log.log import Log
from catchwater.log.read.stable import Stability
from catchwater.log.write import sequence, shared, txn
from catchwater.log.write.sequence import Result
from catchwater.wire.errors import ErrorCode

Plant = Callable[[], Any]


@dataclass(frozen=True)
class Bug:
    """What is wrong, and by what it shows: any of these."""

    name: str
    plant: Plant
    shows: tuple[str, ...]
    climate: Mapping[str, float] = field(default_factory=dict)
    """What it needs to show soon, beside the faults there are anyway."""
    seed: int = 0
    """The first one to try: one that shows it soon."""


UNCERTAIN = {"catalog_is_uncertain": 0.2}
REPEATED = {"network_repeats": 0.5}
LOSSY = {"network_loses": 0.3}
UNTOLD = {"notice_is_lost": 0.5}


@contextmanager
def all_of(*patches: Any) -> Iterator[None]:
    if not patches:
        yield
        return
    with patches[0], all_of(*patches[1:]):
        yield


def acknowledge_before_commit() -> Any:
    """Some chunks are acknowledged as soon as they are written, and then never committed."""
    original = shared.SharedCommitter._transact

    async def transact(self: Any, write: Any) -> Any:
        if write.place.sequence % 8 != 5:
            return await original(self, write)
        states = self._core.states
        ends = [states[e.topic_id, e.partition].high_watermark for e in write.chunk.entries]
        return [Result(ErrorCode.NONE, end) for end in ends], Changes()

    return patch.object(shared.SharedCommitter, "_transact", transact)


def forget_the_duplicate_check() -> Any:
    """Whatever a producer sends is appended."""
    return patch.object(sequence, "known_or_refused", lambda entry, known: None)


def forget_producers_between_chunks() -> Any:
    """A producer's standing is not stored, so another broker knows nothing of it."""
    original = sequence.catalog_changes

    def changes(*args: Any) -> Changes:
        return replace(original(*args), producers=[])

    return patch.object(sequence, "catalog_changes", changes)


def forget_a_settled_commit() -> Any:
    """A commit whose answer was lost is taken for one that never happened, and made again."""

    async def settle(*args: Any, **how: Any) -> None:
        return None

    return all_of(
        patch.object(shared.SharedCommitter, "_settle", settle),
        patch.object(sequence, "known_or_refused", lambda entry, known: None),
    )


def lose_a_run_in_packing() -> Any:
    """The packer leaves out the first run of a group, and replaces it all the same."""
    original = pack.Packer._pack_group

    def pack_group(self: Any, group: list[Any]) -> bool:
        taken = iter(group)
        first = next(taken)
        if len(group) < 2:
            return original(self, group)
        self._catalog.replace_runs([first], [], []).result()
        return original(self, group[1:])

    return patch.object(pack.Packer, "_pack_group", pack_group)


def delete_chunks_that_are_half_packed() -> Any:
    """A chunk is deleted when one of its partitions was packed."""
    original = pack.Packer._pack_group

    def pack_group(self: Any, group: list[Any]) -> bool:
        packed = original(self, group)
        for run in group if packed else ():
            self._storage.delete(run.object)
        return packed

    return patch.object(pack.Packer, "_pack_group", pack_group)


def forget_the_members_of_groups() -> Any:
    """A coordinator begins every group anew, whatever the last one has left."""
    return patch.object(Coordinator, "_load", lambda self, group_id, row: None)


def mark_only_some_partitions() -> Any:
    """The end of a transaction is written to the first of its partitions only."""
    original = sequence._check_end

    def check_end(entry: Any, state: Any, txns: Any, done: Any) -> Any:
        answer = original(entry, state, txns, done)
        if answer is None and done.closed:
            return sequence.refused(ErrorCode.INVALID_TXN_STATE)
        return answer

    return patch.object(sequence, "_check_end", check_end)


def forget_what_was_aborted() -> Any:
    """Readers of committed records are not told of aborted transactions."""

    return patch.object(Stability, "aborted_now", lambda self, *args: [])


def ignore_the_last_stable_offset() -> Any:
    """Readers of committed records are given what is still open."""

    def last_stable_offset_now(self: Any, key: Any) -> int:
        return int(self._states[key].high_watermark)

    return patch.object(Stability, "last_stable_offset_now", last_stable_offset_now)


def commit_what_is_to_be_aborted() -> Any:
    """A transaction's pending positions are kept even if it is aborted."""
    original = sequence._check_end

    def check_end(entry: Any, state: Any, txns: Any, done: Any) -> Any:
        answer = original(entry, state, txns, done)
        done.ended[:] = [EndedTxn(end.producer_id, True) for end in done.ended]
        return answer

    return patch.object(sequence, "_check_end", check_end)


def end_whichever_transaction_is_open() -> Any:
    """The end of an earlier transaction, when it comes late, is taken for that of this one."""
    original = txn.ended

    def ended(row: Any, producer: Any, **how: Any) -> Any:
        return original(row, (producer[0], row.epoch) if row else producer, **how)

    return patch.object(txn, "ended", ended)


def answer_from_a_stale_view() -> Any:
    """Nobody asks the catalog where a partition ends."""

    async def refresh(self: Any, keys: Any) -> None:
        return None

    return patch.object(Log, "refresh", refresh)


def answer_a_duplicate_wrongly() -> Any:
    """A batch that was sent again is answered with the offset behind its own."""
    original = sequence.known_or_refused

    def known_or_refused(entry: Any, known: Any) -> Any:
        answer = original(entry, known)
        if answer is not None and answer.duplicate:
            return msgspec.structs.replace(answer, base_offset=answer.base_offset + 1)
        return answer

    return patch.object(sequence, "known_or_refused", known_or_refused)


def trim_past_a_pin() -> Any:
    """Nobody looks at pins when records are deleted."""
    return patch.object(housekeeping, "in_force", lambda pins, now_ms: [])


def compact_away_the_last_value() -> Any:
    """Compaction keeps the earlier values of a key instead of the last."""

    def is_latest(self: Any, record: Any, header: Any) -> bool:
        offset = header.base_offset + record.offset_delta
        return record.key is None or self._latest.get(clean._hash(record.key)) != offset

    return patch.object(Cleaning, "_is_latest", is_latest)


def write_an_epoch_twice() -> Any:
    """A sink's epoch is not looked up before it is written, and may follow itself."""

    def record(pipeline: str, sink: str, commit: Any, db: Any) -> None:
        return None

    return all_of(
        patch.object(catalog_commit, "record_epoch", record),
        patch.object(catalog_commit, "find_epoch", lambda *args: None),
    )


def leave_overdue_open() -> Any:
    """Overdue transactions are left open."""
    from catchwater.log.transactions import Transactions

    return patch.object(Transactions, "_overdue", lambda self, rows: [])


def ignore_the_end_of_a_session() -> Any:
    """Neither a commit nor a heartbeat looks whether the session has ended: a zombie goes on."""
    original = catalog_commit.look

    def look(scope: Any, db: Any) -> ScopeRows:
        return original(replace(scope, session=None), db)

    return all_of(
        patch.object(catalog_commit, "look", look),
        patch.object(catalog_commit, "require_session", lambda session, db: None),
    )


BUGS = [
    Bug("acknowledge before commit", acknowledge_before_commit, ("unseen", "lost-write")),
    Bug("no duplicate check", forget_the_duplicate_check, ("duplicate",), LOSSY),
    Bug("producers forgotten", forget_producers_between_chunks, ("duplicate",), seed=3),
    Bug("commit made twice", forget_a_settled_commit, ("duplicate",), UNCERTAIN, seed=7),
    Bug(
        "run lost in packing",
        lose_a_run_in_packing,
        ("lost-write", "no run holds", "unseen"),
        seed=2,
    ),
    Bug(
        "chunks deleted early", delete_chunks_that_are_half_packed, ("no progress", "run "), seed=4
    ),
    Bug("members forgotten", forget_the_members_of_groups, ("lost its only member",)),
    Bug(
        "marker on one partition", mark_only_some_partitions, ("still open", "no progress"), seed=4
    ),
    Bug("aborted not told", forget_what_was_aborted, ("G1a",), seed=2),
    Bug("open transactions read", ignore_the_last_stable_offset, ("G1a", "poll-skip"), seed=1),
    Bug("aborted positions kept", commit_what_is_to_be_aborted, ("copier",), seed=4),
    Bug("late ends accepted", end_whichever_transaction_is_open, ("G1a",), REPEATED, seed=3),
    Bug("watermark of a stale view", answer_from_a_stale_view, ("hw-regression",), UNTOLD, seed=1),
    Bug("wrong offset told", answer_a_duplicate_wrongly, ("inconsistent-offsets",), LOSSY),
    Bug("pins ignored", trim_past_a_pin, ("pinned",)),
    Bug("last value compacted away", compact_away_the_last_value, ("lost-write", "unseen"), seed=2),
    Bug("epoch written twice", write_an_epoch_twice, ("duplicate", "torn-contract")),
    Bug("overdue left open", leave_overdue_open, ("no progress", "still open"), seed=1),
    Bug("session not checked", ignore_the_end_of_a_session, ("ended session",), seed=2),
]
