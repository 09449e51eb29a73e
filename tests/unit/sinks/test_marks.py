"""Marks: the rules of a commit, wherever they are kept."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.sinks.base import EpochDiffers, EpochMissing, Superseded, TargetTaken
from catchwater.sinks.epochs import (
    MOST_MARKS,
    Mark,
    Marks,
    MarksDamaged,
    Owner,
    TargetEpochs,
    admit,
    decode_marks,
)

NOTHING = Marks("cards", "alerts", 0)


def mark(epoch: int, generation: int = 0, checksum: str = "c") -> Mark:
    return Mark(epoch, generation, 3, f"{checksum}{epoch}")


def marks(*epochs: int, generation: int = 0) -> Marks:
    found = Marks("cards", "alerts", generation)
    for epoch in epochs:
        found = found.written(mark(epoch, generation), 0)
    return found


OWNER = Owner("cards", "alerts", 2)


@pytest.mark.parametrize(
    ("generation", "newest", "has", "epoch", "answer"),
    [
        (2, None, None, 0, None),  # a target that has nothing takes the first epoch
        (2, None, None, 7, None),  # which may be any: of a sink that was added
        (2, 7, None, 8, None),  # the next one
        (1, 7, None, 8, None),  # the next one, after a rollback that took nothing back here
        (2, 7, "c", 7, "again"),  # a repeat, of the newest
        (2, 7, "c", 3, "again"),  # a repeat of an older one, as after a restore
        (1, 7, "c", 7, "again"),  # a repeat of what an older generation wrote
        (2, 7, "x", 7, EpochDiffers),  # a repeat with other content
        (2, 7, None, 9, EpochMissing),  # a gap
        (2, 7, None, 6, EpochMissing),  # an epoch whose mark was forgotten
        (3, None, None, 0, Superseded),  # a stale driver, whatever it writes
        (3, 7, None, 8, Superseded),
        (3, 7, "c", 7, Superseded),
        (3, 7, "x", 7, Superseded),
    ],
)
def test_an_epoch_is_written_once_in_order_and_by_the_newest_generation(
    generation: int, newest: int | None, has: str | None, epoch: int, answer: object
) -> None:
    there = None if has is None else mark(epoch, 1, has)
    known, wanted = TargetEpochs(generation, newest, there), mark(epoch, OWNER.generation)
    if isinstance(answer, type):
        with pytest.raises(answer):
            admit(OWNER, known, wanted)
    else:
        assert admit(OWNER, known, wanted) == (there if answer == "again" else None)


def test_a_first_epoch_may_be_any_and_the_next_must_follow() -> None:
    assert NOTHING.admit(mark(7)) is None
    assert marks(7).admit(mark(8)) is None
    for epoch in (6, 9):
        with pytest.raises(EpochMissing, match=f"up to 7 and no mark of {epoch}"):
            marks(7).admit(mark(epoch))


def test_an_epoch_with_a_mark_answers_it_and_with_other_content_is_refused() -> None:
    assert marks(0, 1).admit(mark(0)) == mark(0)
    assert marks(0, 1).admit(mark(0, generation=1)) == mark(0)
    with pytest.raises(EpochDiffers, match=r"epoch 1 of 'cards' with checksum c1; .* gave x1"):
        marks(0, 1).admit(mark(1, checksum="x"))


def test_an_older_generation_is_told_that_it_was_superseded() -> None:
    with pytest.raises(Superseded, match="written by generation 2; this is generation 1"):
        marks(0, generation=2).admit(mark(1, generation=1))
    with pytest.raises(Superseded):
        marks(0, generation=2).withdrawn(0, 1)


def test_marks_of_another_pipeline_or_sink_are_refused() -> None:
    marks(0).owned_by(NOTHING.owner, "there")
    for other in (Owner("cards", "others"), Owner("trips", "alerts")):
        with pytest.raises(TargetTaken, match="there is written by the sink 'alerts' of the"):
            marks(0).owned_by(other, "there")


def test_a_withdrawal_takes_back_what_older_generations_wrote_and_can_be_done_again() -> None:
    left, gone = marks(3, 4, 5).withdrawn(3, 1)
    assert (gone, left.newest, left.generation) == ([4, 5], 3, 1)
    written = left.written(mark(4, 1), 0)
    assert written.withdrawn(3, 1) == (written, [])
    assert written.withdrawn(3, 2)[1] == [4]
    assert marks(0, 1).withdrawn(-1, 1)[0].newest is None


def test_a_withdrawal_goes_back_behind_the_marks_that_are_kept() -> None:
    kept = marks(994, 995, 996)
    left, gone = kept.withdrawn(10, 1)
    assert (gone, left.newest) == ([994, 995, 996], 10)
    assert left.withdrawn(10, 1) == (left, [])
    assert left.admit(mark(11, 1)) is None
    # Even where no mark is kept at all.
    assert msgspec.structs.replace(kept, epochs=()).withdrawn(10, 1)[0].newest == 10


def test_what_this_generation_wrote_is_not_called_taken_back() -> None:
    left, _ = marks(3, 4).withdrawn(3, 1)
    left = left.written(mark(4, 1), 0)
    behind, gone = left.withdrawn(2, 1)
    assert (gone, behind.newest) == ([3], 4), "still ahead: only a newer generation takes it"
    assert behind.withdrawn(2, 2)[0].newest == 2


@given(st.integers(0, 9), st.integers(1, 30), st.integers(0, 40))
def test_what_is_forgotten_are_the_oldest_marks_only(first: int, count: int, oldest: int) -> None:
    found = NOTHING
    for epoch in range(first, first + count):
        found = found.written(mark(epoch), oldest)
    assert found.newest == first + count - 1
    assert [m.epoch for m in found.epochs] == [
        epoch for epoch in range(first, first + count) if epoch >= oldest
    ]
    assert found.admit(mark(first + count)) is None


def test_marks_are_bounded_where_nobody_says_what_is_no_longer_needed() -> None:
    found = NOTHING
    for epoch in range(MOST_MARKS + 5):
        found = found.written(mark(epoch), 0)
    assert (len(found.epochs), found.epochs[0].epoch) == (MOST_MARKS, 5)


def test_marks_come_back_from_their_bytes_and_damaged_ones_are_named() -> None:
    found = marks(0, 1)
    assert decode_marks(found.encode(), "here") == found
    for data in (b"", b"{}", b'{"pipeline": 1}', found.encode()[:-4]):
        with pytest.raises(MarksDamaged, match="The marks of here cannot be read"):
            decode_marks(data, "here")
