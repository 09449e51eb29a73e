"""A shadow follows its leader, and leads from the epoch after its last one."""

from pathlib import Path

import pytest

from catchwater.recovery import handover
from catchwater.recovery.ledger import EpochEntry, Ledger, SourceOffset


def offset(epoch: int) -> SourceOffset:
    return SourceOffset(epoch, {"orders": {"0": epoch}}, [0], 0)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A leader that has done epochs 0 to 3, and its shadow."""
    leader, shadow = tmp_path / "leader", tmp_path / "shadow"
    for epoch in range(4):
        entry = EpochEntry(epoch, offset(epoch - 1), offset(epoch), [], {}, 0)
        Ledger(leader).write(entry)
    handover.follow(shadow, leader)
    return leader, shadow


def test_a_shadows_epochs_end_where_the_leaders_did(pair: tuple[Path, Path]) -> None:
    _, shadow = pair
    assert handover.leaders_end(shadow, 2) == offset(2)
    assert handover.leaders_end(shadow, 4) is None
    assert handover.is_shadow(shadow, 4)
    assert not handover.take_over(shadow)


def test_after_the_handover_it_leads_from_the_next_epoch_on(pair: tuple[Path, Path]) -> None:
    leader, shadow = pair
    handover.fence(leader, shadow)
    assert handover.fenced_by(leader) == shadow
    handover.hand_over(leader, 3)
    assert handover.is_shadow(shadow, 4), "it does not know yet"
    assert handover.take_over(shadow)
    assert handover.is_shadow(shadow, 3)
    assert not handover.is_shadow(shadow, 4)
    assert handover.take_over(shadow)


def test_who_leads_again_from_an_earlier_epoch_follows_nobody(pair: tuple[Path, Path]) -> None:
    leader, shadow = pair
    handover.fence(leader, shadow)
    handover.hand_over(leader, 3)
    handover.take_over(shadow)
    handover.lead(shadow)
    assert not handover.is_shadow(shadow, 2)


def test_the_pipelines_checkpoint_is_found_at_the_end_of_all_handovers(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    leader, shadow = pair
    assert handover.current(leader) == leader
    handover.fence(leader, shadow)
    assert handover.current(leader) == leader
    handover.hand_over(leader, 3)
    assert handover.current(leader) == shadow
    handover.fence(shadow, tmp_path / "third")
    handover.hand_over(shadow, 9)
    assert handover.current(leader) == tmp_path / "third"


def test_who_always_led_is_nobodys_shadow(tmp_path: Path) -> None:
    assert not handover.is_shadow(tmp_path, 0)
    assert handover.take_over(tmp_path)
    assert handover.leaders_end(tmp_path, 0) is None


def test_a_leader_is_slowed_down_for_a_while_only(pair: tuple[Path, Path]) -> None:
    leader, _ = pair
    assert handover.pace(leader, 0) == 0
    handover.set_pace(leader, 700, until_ms=5000)
    assert handover.pace(leader, 4999) == 700
    assert handover.pace(leader, 5000) == 0


def test_behind_a_closed_fence_nobody_starts_until_it_is_lifted(pair: tuple[Path, Path]) -> None:
    leader, shadow = pair
    handover.check_leads(leader)
    handover.fence(leader, shadow)
    handover.check_leads(leader)
    handover.fence(leader, shadow, closed=True)
    with pytest.raises(handover.HandedOver, match="has begun to take the place") as refused:
        handover.check_leads(leader)
    assert refused.value.hint is not None and "rebuild FILE --label shadow" in refused.value.hint
    handover.lift_fence(leader)
    handover.lift_fence(leader)
    handover.check_leads(leader)


def test_who_has_handed_over_does_not_start_again(pair: tuple[Path, Path]) -> None:
    leader, shadow = pair
    handover.fence(leader, shadow)
    handover.hand_over(leader, 3)
    with pytest.raises(handover.HandedOver, match="has handed over to"):
        handover.check_leads(leader)
    handover.check_leads(shadow)
