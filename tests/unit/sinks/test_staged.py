"""What was staged is read back whole, or its damage is named; what is old is forgotten."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.clock import Clock
from catchwater.sinks.base import OutputRecord, RowId, Staged
from catchwater.sinks.epochs import Archive, PieceDamaged, StagedFile, staged_folder

records = st.lists(
    st.builds(
        OutputRecord,
        st.binary(max_size=9),
        st.binary(max_size=99),
        st.integers(0, 2**60),
        st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=3)), max_size=2).map(tuple),
    ),
    max_size=20,
)


def archive(root: Path, keep_ms: int | None = None) -> Archive:
    return Archive(StagedFile(root.as_uri(), "staged/alerts"), keep_ms=keep_ms)


def some(count: int) -> list[OutputRecord]:
    return [OutputRecord(b"k%d" % row, b"value %d" % row, 7) for row in range(count)]


def keep(truth: Archive, epoch: int, now_ms: int = 0) -> list[Staged]:
    pieces = [truth.stager().stage(epoch, shard, some(3)) for shard in (1, 0)]
    truth.record(epoch, pieces, now_ms)
    return pieces


@settings(max_examples=50, deadline=None)
@given(records)
def test_records_are_read_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, given_records: list[OutputRecord]
) -> None:
    truth = archive(tmp_path_factory.getbasetemp() / "staged")
    piece = truth.stager().stage(3, 1, given_records)
    assert truth.records(piece) == given_records
    assert piece.records == len(given_records)


def test_a_shard_without_output_puts_nothing(tmp_path: Path) -> None:
    assert archive(tmp_path).stager().stage(0, 4, []) == Staged(4, "", 0, 0, 0)
    assert not (tmp_path / "staged").exists()


def test_two_attempts_lie_apart_and_the_index_says_which_counts(tmp_path: Path) -> None:
    truth = archive(tmp_path)
    first = truth.stager().stage(0, 0, some(2))
    second = truth.stager().stage(0, 0, some(2))
    assert first.location != second.location
    assert truth.pieces(0) is None
    truth.record(0, [second], 0)
    assert truth.pieces(0) == [second]
    assert [row.id for row in truth.rows(0)] == [RowId(0, 0, 0), RowId(0, 0, 1)]


def test_damage_at_any_byte_is_named(tmp_path: Path) -> None:
    truth = archive(tmp_path)
    piece = truth.stager().stage(0, 0, some(3), Clock(1))
    path = tmp_path / piece.location
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(PieceDamaged, match="cannot be read"):
            truth.records(piece)
        path.write_bytes(data[:at])
        with pytest.raises(PieceDamaged):
            truth.records(piece)
    path.unlink()
    with pytest.raises(PieceDamaged, match=r"\.rows"):
        truth.records(piece)


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    truth = archive(tmp_path)
    keep(truth, 0)
    (index,) = (tmp_path / "staged" / "alerts").glob("*-index.json")
    index.write_bytes(b"{")
    with pytest.raises(PieceDamaged, match=r"index\.json is damaged"):
        truth.pieces(0)


def test_epochs_that_no_restore_needs_are_swept_with_failed_attempts(tmp_path: Path) -> None:
    truth = archive(tmp_path)
    for epoch in range(4):
        truth.stager().stage(epoch, 0, some(1))  # an attempt that failed
        keep(truth, epoch)
    truth.sweep(2, 10**15)
    assert truth.epochs() == [2, 3]
    left = [info.key for info in truth.store.list("staged/")]
    assert {int(key.split("/")[2].split("-")[0]) for key in left} == {2, 3}
    keep(truth, 4, now_ms=10**15)
    truth.sweep(4, 10**15)
    assert truth.epochs() == [4]


def test_epochs_are_kept_for_as_long_as_they_are_to_be(tmp_path: Path) -> None:
    truth = archive(tmp_path, keep_ms=1000)
    truth.sweep(0, 0)
    for epoch in range(3):
        keep(truth, epoch, now_ms=epoch * 600)
    truth.sweep(2, 1100)
    assert truth.epochs() == [1, 2]
    truth.sweep(2, 5000)
    assert truth.epochs() == [2]


def test_what_was_taken_back_is_forgotten(tmp_path: Path) -> None:
    truth = archive(tmp_path)
    for epoch in range(4):
        keep(truth, epoch)
    truth.withdraw(1)
    assert truth.epochs() == [0, 1]


def test_an_epoch_is_no_longer_kept_before_any_of_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = archive(tmp_path)
    keep(truth, 0)
    keep(truth, 1)
    seen: list[tuple[list[int], bool]] = []
    delete = truth.store.delete

    def spied(key: str) -> None:
        delete(key)
        there = {info.key for info in truth.store.list("staged/")}
        seen.append((truth.epochs(), any(f"{0:020d}-" in each for each in there)))

    monkeypatch.setattr(truth.store, "delete", spied)
    truth.sweep(1, 10**15)
    assert seen[0] == ([1], True)
    assert seen[-1] == ([1], False)


@pytest.mark.parametrize("name", ["alerts", "a-b_c.d"])
def test_a_plain_name_stands_in_keys_as_it_is(name: str) -> None:
    assert staged_folder(name) == f"staged/{name}"
    assert staged_folder("cards", name) == f"staged/cards/{name}"


def test_any_other_name_stands_in_keys_as_a_digest() -> None:
    found = {staged_folder(name) for name in ("", "..", "a/b", "ä", ".hidden")}
    parts = [folder.removeprefix("staged/") for folder in found]
    assert len(parts) == 5
    assert all(len(part) == 16 and part.isalnum() for part in parts)
