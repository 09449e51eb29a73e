"""A shadow follows its leader, and leads from the epoch after its last one."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from catchwater.recovery import handover
from catchwater.recovery.handover import (
    ROLES,
    WORKS,
    Event,
    HandedOver,
    RestoreUnfinished,
    Role,
    Work,
)
from catchwater.recovery.ledger import FOLDER, EpochEntry, Ledger, SourceOffset, write_whole


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
    handover.ask(leader, shadow)
    assert handover.fenced_by(leader) == shadow
    handover.hand_over(leader, 3)
    assert handover.is_shadow(shadow, 4), "it does not know yet"
    assert handover.take_over(shadow)
    assert handover.is_shadow(shadow, 3)
    assert not handover.is_shadow(shadow, 4)
    assert handover.take_over(shadow)


def test_who_leads_again_from_an_earlier_epoch_follows_nobody(pair: tuple[Path, Path]) -> None:
    leader, shadow = pair
    handover.ask(leader, shadow)
    handover.hand_over(leader, 3)
    handover.take_over(shadow)
    handover.lead(shadow)
    assert not handover.is_shadow(shadow, 2)


def test_the_pipelines_checkpoint_is_found_at_the_end_of_all_handovers(
    pair: tuple[Path, Path], tmp_path: Path
) -> None:
    leader, shadow = pair
    assert handover.current(leader) == leader
    handover.ask(leader, shadow)
    assert handover.current(leader) == leader
    handover.hand_over(leader, 3)
    assert handover.current(leader) == shadow
    handover.take_over(shadow)
    handover.ask(shadow, tmp_path / "third")
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


def test_behind_a_closed_fence_nobody_starts_until_it_is_given_back(
    pair: tuple[Path, Path],
) -> None:
    leader, shadow = pair
    handover.check(leader, Event.START)
    handover.ask(leader, shadow)
    handover.check(leader, Event.START)
    handover.replace(leader, shadow)
    with pytest.raises(handover.HandedOver, match="has begun to take the place") as refused:
        handover.check(leader, Event.START)
    assert refused.value.hint is not None and "rebuild FILE --label shadow" in refused.value.hint
    handover.give_back(leader)
    handover.check(leader, Event.START)


def test_who_has_handed_over_does_not_start_again(pair: tuple[Path, Path]) -> None:
    leader, shadow = pair
    handover.ask(leader, shadow)
    handover.hand_over(leader, 3)
    with pytest.raises(handover.HandedOver, match="has handed over to"):
        handover.check(leader, Event.START)
    handover.check(shadow, Event.START)


# Every event in every state, by the table at the head of the module.

OTHER = "other"


def checkpoint_in(folder: Path, role: Role, work: Work) -> Path:
    """A checkpoint in this state, by the files that earlier releases wrote as well."""
    files: dict[str, str] = {}
    if role is Role.FOLLOWS:
        files["shadow"] = f'{{"leader": "{folder / "leader"}", "until": null}}'
    if role in (Role.ASKED, Role.REPLACED, Role.HANDED_OVER):
        closed = "true" if role is Role.REPLACED else "false"
        files["fence"] = f'{{"to": "{folder / OTHER}", "closed": {closed}}}'
    if role is Role.HANDED_OVER:
        files["handed-over"] = f'{{"to": "{folder / OTHER}", "epoch": 3}}'
    if work is Work.REWINDING:
        files["restoring"] = '{"epoch": 2}'
    if work is Work.RESTORING:
        files["restoring-savepoint"] = '{"savepoint": "file:///s/s1", "command": "again"}'
    checkpoint = folder / "checkpoint"
    for name, text in files.items():
        write_whole(checkpoint / FOLDER / f"{name}.json", text.encode())
    (checkpoint / FOLDER).mkdir(parents=True, exist_ok=True)
    return checkpoint


def learn_of_handover(checkpoint: Path) -> bool:
    """Let the checkpoint learn that its leader has handed over to it."""
    handed = handover.Successor(str(checkpoint), 3)
    leader = checkpoint.parent / "leader"
    write_whole(leader / FOLDER / "handed-over.json", msgspec.json.encode(handed))
    return handover.take_over(checkpoint)


HAPPENS: dict[Event, Callable[[Path], object]] = {
    Event.START: lambda folder: handover.check(folder, Event.START),
    Event.FOLLOW: lambda folder: handover.follow(folder, folder.parent / "leader"),
    Event.ASK: lambda folder: handover.ask(folder, folder.parent / OTHER),
    Event.FORGET: handover.forget,
    Event.REPLACE: lambda folder: handover.replace(folder, folder.parent / OTHER),
    Event.GIVE_BACK: handover.give_back,
    Event.HAND_OVER: lambda folder: handover.hand_over(folder, 3),
    Event.TAKE_OVER: learn_of_handover,
    Event.LEAD: handover.lead,
    Event.REWIND: lambda folder: handover.begin_rewind(folder, 2),
    Event.REWOUND: handover.end_rewind,
    Event.RESTORE: lambda folder: handover.begin_restore(folder, handover.Restore("s", "again")),
    Event.RESTORED: handover.end_restore,
}
"""How each event is made to happen."""

MEANT = {
    Role.HANDED_OVER: HandedOver,
    Role.REPLACED: HandedOver,
    Role.FOLLOWS: HandedOver,
    Work.RESTORING: RestoreUnfinished,
}
"""States in which somebody may well ask for what cannot be; elsewhere it is a bug."""


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*.json")}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("role", Role)
def test_what_may_happen_stands_in_the_table_and_all_else_is_refused(
    tmp_path: Path, event: Event, role: Role
) -> None:
    """And each event is one file, so a crash leaves the state before it or the one behind it."""
    for work in Work:
        (tmp_path / work.name).mkdir()
        checkpoint = checkpoint_in(tmp_path / work.name, role, work)
        assert (handover.role_of(checkpoint), handover.work_of(checkpoint)) == (role, work)
        roles, works = ROLES.get(event, {role: role}), WORKS.get(event, {work: work})
        before = content(checkpoint)
        if role in roles and work in works:
            HAPPENS[event](checkpoint)
            assert handover.role_of(checkpoint) is roles[role]
            assert handover.work_of(checkpoint) is works[work]
        elif event is Event.TAKE_OVER:  # it asks by itself whether there is anything to take over
            assert handover.take_over(checkpoint)
        else:
            refused = MEANT.get(role if role not in roles else work, AssertionError)
            with pytest.raises(refused):
                HAPPENS[event](checkpoint)
            assert content(checkpoint) == before
        behind = content(checkpoint)
        changed = [n for n in {*before, *behind} if before.get(n) != behind.get(n)]
        assert len(changed) <= 1


def test_each_event_is_in_a_table() -> None:
    assert {*ROLES, *WORKS} == {*Event} == {*HAPPENS}
