"""The comparison is pure, and finds exactly what was done to the rows."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.sinks import reconcile
from catchwater.sinks.base import (
    RETRACTS_ID_HEADER,
    Fix,
    OutputRecord,
    RowId,
    RowsUnreadable,
    SinkRow,
    Staged,
    StagedRow,
    record_digest,
)
from catchwater.sinks.epochs import PieceDamaged
from catchwater.sinks.reconcile import Finding, compare


def row(epoch: int, at: int, key: bytes = b"k") -> StagedRow:
    return StagedRow(RowId(epoch, 0, at), OutputRecord(key, b"%d-%d" % (epoch, at), 0))


def held(each: StagedRow) -> SinkRow:
    return SinkRow(each.id, each.record.key, record_digest(each.record))


def append(record: OutputRecord) -> None:
    return None


damages = st.lists(st.sampled_from(["", "", "", "missing", "doubled", "altered"]), max_size=60)


@given(damages, st.randoms())
def test_exactly_what_was_damaged_is_found(damage: list[str], random: Any) -> None:
    expected = [row(at // 7, at % 7, b"k%d" % at) for at in range(len(damage))]
    target = []
    for each, kind in zip(expected, damage, strict=True):
        there = held(each)
        target += {
            "": [there], "missing": [], "doubled": [there, there],
            "altered": [there._replace(digest=b"other")],
        }[kind]  # fmt: skip
    random.shuffle(target)
    rows, findings = compare(expected, target, identity=append, digest=record_digest)
    assert rows == len(damage)
    wanted = [Finding(kind, each.id, each.record.key)  # type: ignore[arg-type]
              for each, kind in zip(expected, damage, strict=True) if kind]  # fmt: skip
    assert findings == sorted(wanted, key=lambda finding: finding.id)


def test_a_row_that_nobody_put_out_is_foreign() -> None:
    stranger = SinkRow(RowId(0, 9, 9), b"x", b"d")
    rows, findings = compare([row(0, 0)], [held(row(0, 0)), stranger], identity=append,
                             digest=record_digest)  # fmt: skip
    assert (rows, findings) == (1, [Finding("foreign", stranger.id, b"x")])


def test_what_was_taken_back_is_not_missed_and_foreign_if_it_is_there() -> None:
    def by_key(record: OutputRecord) -> bytes:
        return record.key

    first, second = row(0, 0, b"a"), row(0, 1, b"b")
    gone = row(1, 0, b"a")
    gone = gone._replace(record=gone.record._replace(headers=((RETRACTS_ID_HEADER, b"id"),)))
    expected = [first, second, gone]
    assert compare(expected, [held(second)], identity=by_key, digest=record_digest) == (1, [])
    rows, findings = compare(
        expected, [held(first), held(second)], identity=by_key, digest=record_digest
    )
    assert (rows, findings) == (1, [Finding("foreign", first.id, b"a")])
    again = row(2, 0, b"a")
    there = [held(second), held(again)]
    assert compare([*expected, again], there, identity=by_key, digest=record_digest) == (2, [])


def test_a_target_that_cannot_tell_contents_is_asked_for_presence_only() -> None:
    blind = held(row(0, 0))._replace(digest=None)
    assert compare([row(0, 0)], [blind], identity=append, digest=record_digest) == (1, [])


def test_of_rows_that_replace_each_other_only_the_last_is_expected() -> None:
    expected = [row(0, 0, b"a"), row(0, 1, b"b"), row(1, 0, b"a"), row(2, 0, b"a")]
    rows, findings = compare(
        expected, [held(expected[1]), held(expected[2])],
        identity=lambda record: record.key, digest=record_digest,
    )  # fmt: skip
    assert rows == 2
    assert [(f.kind, f.id) for f in findings] == [
        ("foreign", RowId(1, 0, 0)), ("missing", RowId(2, 0, 0)),
    ]  # fmt: skip


class MemorySink:
    """Rows in a list; a sink as far as verify and repair ask."""

    def __init__(self, epochs: dict[int, list[StagedRow]], last: int | None) -> None:
        self.staged = epochs
        self.last = last
        self.content = [
            held(each) for epoch, rows in epochs.items() if last is None or epoch <= last
            for each in rows
        ]  # fmt: skip
        self.asked: list[tuple[int, int]] = []
        self.truth = self
        self.name = "alerts"

    def epochs(self) -> list[int]:
        return sorted(self.staged)

    def pieces(self, epoch: int) -> list[Staged]:
        return [Staged(0, "x", len(self.staged[epoch]), 0, 0)]

    def rows(self, first: int, last: int | None = None) -> Iterator[Any]:
        if last is None:
            return iter(self.staged[first])
        self.asked.append((first, last))
        return (each for each in self.content if first <= each.id.epoch <= last)

    def last_epoch(self) -> int | None:
        return self.last

    def identity(self, record: OutputRecord) -> bytes | None:
        return None

    def digest(self, record: OutputRecord) -> bytes:
        return record_digest(record)

    def commit(self, epoch: int, staged: Iterable[Staged]) -> None:
        self.content += [held(each) for each in self.staged[epoch]]
        self.last = epoch

    def repair(self, fixes: Iterable[Fix]) -> list[Fix]:
        for fix in fixes:
            self.content = [each for each in self.content if each.id != fix.id]
            if fix.record is not None:
                self.content.append(held(StagedRow(fix.id, fix.record)))
        return []


def sink(last: int | None = 9) -> Any:
    return MemorySink({epoch: [row(epoch, at) for at in range(4)] for epoch in range(10)}, last)


def test_epochs_are_compared_some_at_a_time(monkeypatch: Any) -> None:
    monkeypatch.setattr(reconcile, "RANGE_ROWS", 12)
    target = sink()
    report = reconcile.verify(target, 9)
    assert target.asked == [(0, 2), (3, 5), (6, 8), (9, 9)]
    assert (report.first, report.last, report.rows, report.findings) == (0, 9, 40, ())


def test_an_epoch_that_was_staged_and_never_committed_is_not_expected() -> None:
    assert reconcile.verify(sink(last=7), 7).rows == 32
    assert reconcile.verify(sink(last=None), 4).rows == 20


def test_epochs_that_the_target_has_lost_are_missing_and_committed_again() -> None:
    target = sink(last=7)
    report = reconcile.verify(target, 9)
    assert Counter(f.kind for f in report.findings) == {"missing": 8}
    assert reconcile.repair(target, report) == []
    assert target.last == 9
    assert not reconcile.verify(target, 9).findings


def test_epochs_that_are_lost_and_not_kept_are_told_and_never_filled_with_nothing() -> None:
    target = sink(last=3)
    for epoch in range(7):
        del target.staged[epoch]
    report = reconcile.verify(target, 9)
    assert report.gone == (4, 5, 6)
    assert Counter(f.kind for f in report.findings) == {"missing": 12}
    with pytest.raises(RowsUnreadable, match="has lost epochs 4 to 6"):
        reconcile.repair(target, report)
    assert target.last == 3


def test_everything_that_was_found_is_mended() -> None:
    target = sink()
    target.content.pop(3)
    target.content.append(target.content[20])
    target.content[11] = target.content[11]._replace(digest=b"other")
    target.content.append(SinkRow(RowId(4, 7, 7), b"x", b"d"))
    report = reconcile.verify(target, 9)
    assert Counter(f.kind for f in report.findings) == dict.fromkeys(
        ("missing", "doubled", "altered", "foreign"), 1
    )
    assert reconcile.repair(target, report) == []
    assert not reconcile.verify(target, 9).findings


def test_nothing_kept_is_nothing_to_compare() -> None:
    assert reconcile.verify(MemorySink({}, 5), 5) == reconcile.Report(None, None, 0, ())  # type: ignore[arg-type]


class Forgetting(MemorySink):
    """Beside a pipeline that forgets its oldest epoch as soon as the target is asked."""

    def rows(self, first: int, last: int | None = None) -> Iterator[Any]:
        if last is None and first not in self.staged:
            raise PieceDamaged("gone")
        if last is not None:
            self.staged.pop(0, None)
        return super().rows(first, last)

    def pieces(self, epoch: int) -> Any:
        return super().pieces(epoch) if epoch in self.staged else None


def test_an_epoch_that_is_forgotten_meanwhile_is_not_taken_for_damage() -> None:
    sink = Forgetting({epoch: [row(epoch, at) for at in range(3)] for epoch in range(3)}, 2)
    sink.content.remove(held(row(1, 1)))
    report = reconcile.verify(sink, 2)  # type: ignore[arg-type]
    assert [(f.kind, f.id) for f in report.findings] == [("missing", RowId(1, 0, 1))]


def test_what_was_staged_and_is_damaged_is_told_all_the_same() -> None:
    sink = Forgetting({0: [row(0, 0)]}, 0)
    sink.pieces = lambda epoch: [Staged(0, "x", 1, 0, 0)]  # type: ignore[assignment]
    with pytest.raises(PieceDamaged):
        reconcile.verify(sink, 0)  # type: ignore[arg-type]
