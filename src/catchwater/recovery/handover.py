"""Which checkpoint of a pipeline writes to its sinks, and what may be done with it now.

A *shadow* is a checkpoint of its own. Its epochs end where its leader's ended and are written to no
sink, until the leader has handed over; from the epoch after on it leads. A checkpoint has one
`Role` and one `Work`; what may happen in which of them, and what it is afterwards, stands in
`ROLES` and `WORKS`, and everything else is refused. Each event writes or removes one file under
`<checkpoint>/catchwater/`, whole, so a process that dies leaves the state before it or behind it:

- `shadow.json`: whom it follows, and, once it has taken over, the leader's last epoch;
- `fence.json`: who asks it to hand over, or, `closed`, who has begun to take its place;
- `handed-over.json`: who leads now, and the last epoch that was written from here;
- `restoring.json`: the epoch to which a rewind is under way; the next start ends it;
- `restoring-savepoint.json`: the restore, rollback or reset that is under way, and its command.

Beside them, `pace.json` asks a leader to plan epochs no faster than this, for a while, that its
shadow can catch up; it expires, so the leader goes on at full speed if the shadow dies.

A process that looks for the pipeline's checkpoint follows `handed-over.json` (`current`). One that
takes a checkpoint first ends what the last one was doing (`make_ready`).
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.recovery import remote
from catchwater.recovery.checkpoint import (
    files_after,
    last_commit,
    move,
    name_query,
    respell,
    write_offset,
)
from catchwater.recovery.folder import CheckpointInUse, holder, lock, refresh
from catchwater.recovery.ledger import (
    FOLDER,
    EpochEntry,
    Ledger,
    LedgerDamaged,
    SourceOffset,
    read_json,
    shown,
    sync_folder,
    write_whole,
)


class Role(Enum):
    """Who decides the checkpoint's epochs, and who writes them to the sinks."""

    LEADS = "leads"
    """It decides its epochs and writes them to the sinks. A new checkpoint leads."""
    FOLLOWS = "follows"
    """It repeats its leader's epochs: they are staged, and compared."""
    ASKED = "asked to hand over"
    """It leads, and plans no more epochs: a shadow waits to take over."""
    REPLACED = "being replaced"
    """Its sinks may hold what a rebuild has written, of which it knows nothing: it cannot start."""
    HANDED_OVER = "handed over"
    """Another checkpoint leads."""


class Work(Enum):
    """What is being done to the checkpoint's files."""

    WHOLE = "whole"
    REWINDING = "rewinding"
    """Later epochs are being moved aside: the next process that takes the checkpoint ends that."""
    RESTORING = "restoring"
    """A savepoint is being restored into it, or it is reset: only the same command goes on."""


class Event(Enum):
    """What happens to a checkpoint, and which process does it."""

    START = "a driver starts, holding the lock"
    FOLLOW = "the restore that makes it a shadow"
    ASK = "its shadow has caught up; the shadow's process is alone in changing the version"
    FORGET = "the process that asked is gone; holding the lock"
    REPLACE = "a rebuild begins to exchange its tables, holding the lock"
    GIVE_BACK = "the rebuild could not exchange even one; holding the lock"
    HAND_OVER = "its driver ended as it was asked, or is gone; holding the lock"
    TAKE_OVER = "it learns that its leader has handed over to it; its own driver"
    LEAD = "a rollback: the epochs that were its leader's are written anew; holding the lock"
    REWIND = "a restore of an older checkpoint, holding the lock"
    REWOUND = "everything was moved aside, holding the lock"
    RESTORE = "a restore of a savepoint or a rollback, holding the lock"
    RESTORED = "all of it is there, holding the lock"


ROLES: Mapping[Event, Mapping[Role, Role]] = {
    Event.START: {each: each for each in (Role.LEADS, Role.FOLLOWS, Role.ASKED)},
    Event.FOLLOW: {Role.LEADS: Role.FOLLOWS, Role.FOLLOWS: Role.FOLLOWS},
    Event.ASK: {Role.LEADS: Role.ASKED},
    Event.FORGET: {
        Role.LEADS: Role.LEADS,
        Role.FOLLOWS: Role.FOLLOWS,
        Role.ASKED: Role.LEADS,
    },
    Event.REPLACE: {
        Role.LEADS: Role.REPLACED,
        Role.ASKED: Role.REPLACED,
        Role.REPLACED: Role.REPLACED,
    },
    Event.GIVE_BACK: {Role.REPLACED: Role.LEADS},
    Event.HAND_OVER: {Role.ASKED: Role.HANDED_OVER, Role.REPLACED: Role.HANDED_OVER},
    Event.TAKE_OVER: {
        Role.FOLLOWS: Role.LEADS,
        Role.ASKED: Role.ASKED,
        Role.REPLACED: Role.REPLACED,
    },
    Event.LEAD: {Role.LEADS: Role.LEADS, Role.FOLLOWS: Role.LEADS},
}
"""Event → role before → role behind. A role that is not there refuses the event."""

WORKS: Mapping[Event, Mapping[Work, Work]] = {
    Event.START: {Work.WHOLE: Work.WHOLE, Work.REWINDING: Work.REWINDING},
    Event.REWIND: {Work.WHOLE: Work.REWINDING, Work.REWINDING: Work.REWINDING},
    Event.REWOUND: {Work.REWINDING: Work.WHOLE, Work.RESTORING: Work.RESTORING},
    Event.RESTORE: {Work.WHOLE: Work.RESTORING, Work.RESTORING: Work.RESTORING},
    Event.RESTORED: {Work.RESTORING: Work.WHOLE},
}
"""The same of what is done to its files."""

CHANGE = "change.lock"
"""The file that the process holds which changes the pipeline's version.

A warm upgrade runs beside the pipeline for a while, so neither the pipeline's lock nor its
supervisor's can say that one is under way. This lock goes with its process, as they do.
"""
_MOST_HANDOVERS = 1000


class HandedOver(CatchwaterError):
    """The checkpoint has handed over to another one, or another one's outputs are in its sinks."""

    exit_code = 5


class RestoreUnfinished(CatchwaterError):
    """A restore into this checkpoint, or a reset of it, was cut short: it is not to be run."""

    exit_code = 5


class AnotherChange(CatchwaterError):
    """Another upgrade or rollback of this checkpoint is under way."""


# The files.


class Shadow(msgspec.Struct, frozen=True):
    """The leader that a checkpoint follows."""

    leader: str
    until: int | None = None
    """The leader's last epoch; None: it still leads."""

    def covers(self, epoch: int) -> bool:
        """Whether this epoch is the leader's."""
        return self.until is None or epoch <= self.until


class Successor(msgspec.Struct, frozen=True):
    """Who leads now."""

    to: str
    epoch: int
    """The last one that was written from here."""


class Restore(msgspec.Struct, frozen=True):
    """A restore of a savepoint, or a reset, that is under way."""

    savepoint: str
    """Its URL; of a reset the one that was taken before, if there is one."""
    command: str
    """What to type to go on."""
    reset: bool = False

    @property
    def name(self) -> str:
        """What it does, for the beginning of a sentence about a checkpoint."""
        return "A reset of" if self.reset else f"Restoring {self.savepoint} into"


class Rewind(msgspec.Struct, frozen=True):
    """A rewind that is under way."""

    epoch: int


class _Pace(msgspec.Struct, frozen=True):
    interval_ms: int
    until_ms: int


class _Fence(msgspec.Struct, frozen=True):
    to: str
    closed: bool = False


def role_of(checkpoint: Path) -> Role:
    """The checkpoint's role. Raises `LedgerDamaged`."""
    if successor_of(checkpoint) is not None:
        return Role.HANDED_OVER
    fence = _fence(checkpoint)
    if fence is not None:
        return Role.REPLACED if fence.closed else Role.ASKED
    shadow = shadow_of(checkpoint)
    return Role.FOLLOWS if shadow is not None and shadow.until is None else Role.LEADS


def work_of(checkpoint: Path) -> Work:
    """What is being done to its files, or was cut short. Raises `LedgerDamaged`."""
    if restore_under_way(checkpoint) is not None:
        return Work.RESTORING
    return Work.WHOLE if rewind_under_way(checkpoint) is None else Work.REWINDING


def in_words(checkpoint: Path) -> str:
    """What is being done to the checkpoint, for a person; nothing: "". Raises `LedgerDamaged`."""
    if (restore := restore_under_way(checkpoint)) is not None:
        done = "it is reset" if restore.reset else f"{restore.savepoint} is restored into it"
        return f"{done}, which was cut short: {restore.command}"
    if (rewind := rewind_under_way(checkpoint)) is not None:
        return f"a rewind to epoch {rewind.epoch}, which the next start ends"
    shadow, fence = shadow_of(checkpoint), _fence(checkpoint)
    if shadow is not None and shadow.until is None:
        return f"it repeats the epochs of {shadow.leader}, and writes to no sink"
    if fence is not None:
        return f"{fence.to} {'takes its place' if fence.closed else 'waits to take over'}"
    return ""


def shadow_of(checkpoint: Path) -> Shadow | None:
    """What the checkpoint follows or has followed; None: it always led."""
    return read_json(_path(checkpoint, "shadow"), Shadow)


def fenced_by(leader: Path) -> Path | None:
    """Who asks the leader to hand over, or takes its place."""
    fence = _fence(leader)
    return Path(fence.to) if fence else None


def successor_of(leader: Path) -> Successor | None:
    """Whether, to whom and where the leader has handed over."""
    return read_json(_path(leader, "handed-over"), Successor)


def rewind_under_way(checkpoint: Path) -> Rewind | None:
    """The rewind that is under way, or was cut short."""
    return read_json(_path(checkpoint, "restoring"), Rewind)


def restore_under_way(checkpoint: Path) -> Restore | None:
    """The restore into this checkpoint, or its reset, that is under way or was cut short."""
    return read_json(_path(checkpoint, "restoring-savepoint"), Restore)


def _fence(leader: Path) -> _Fence | None:
    return read_json(_path(leader, "fence"), _Fence)


# What follows from them.


def current(checkpoint: Path) -> Path:
    """The checkpoint that the pipeline goes on from: this one, or the one it has handed over to.

    Raises `LedgerDamaged`.
    """
    refresh(checkpoint)
    found, damage = find_current(checkpoint)
    if damage is not None:
        raise damage
    return found


def find_current(checkpoint: Path) -> tuple[Path, LedgerDamaged | None]:
    """The same as far as it can be read here, and what cannot be."""
    for _ in range(_MOST_HANDOVERS):
        try:
            handed = successor_of(checkpoint)
        except LedgerDamaged as damage:
            return checkpoint, damage
        if handed is None:
            break
        checkpoint = Path(handed.to)
    return checkpoint, None


def is_shadow(checkpoint: Path, epoch: int) -> bool:
    """Whether this epoch of the checkpoint is written to no sink."""
    shadow = shadow_of(checkpoint)
    return shadow is not None and shadow.covers(epoch)


def leaders_end(checkpoint: Path, epoch: int) -> SourceOffset | None:
    """Where the leader's epoch ended; None if it is not there yet, or was forgotten."""
    entry = leaders_entry(checkpoint, epoch)
    return entry.end if entry else None


def leaders_entry(checkpoint: Path, epoch: int) -> EpochEntry | None:
    """The leader's own entry of an epoch that its shadow repeats."""
    shadow = shadow_of(checkpoint)
    return Ledger(Path(shadow.leader)).read(epoch) if shadow else None


# The events.


def check(checkpoint: Path, event: Event) -> None:
    """Raise `HandedOver` or `RestoreUnfinished` where the event is refused. Changes nothing.

    A process that waited for the lock was given this checkpoint before another one took over. That
    an event comes in a state in which no command leads to it is a bug.
    """
    if event in ROLES and (role := role_of(checkpoint)) not in ROLES[event]:
        _refuse_role(checkpoint)
        raise AssertionError(f"{checkpoint} {role.value}: {event.name}")
    if event in WORKS and (work := work_of(checkpoint)) not in WORKS[event]:
        refuse_unfinished(checkpoint)
        raise AssertionError(f"{checkpoint} is {work.value}: {event.name}")


def refuse_unfinished(checkpoint: Path) -> None:
    """Raise `RestoreUnfinished` if a restore into this checkpoint, or a reset, was cut short."""
    restore = restore_under_way(checkpoint)
    if restore is not None:
        raise RestoreUnfinished(
            f"{restore.name} {shown(checkpoint)} was cut short; it is incomplete.",
            hint=f"Do it again: {restore.command}.",
        )


def follow(shadow: Path, leader: Path) -> None:
    """Make a checkpoint the shadow of another."""
    check(shadow, Event.FOLLOW)
    write_whole(_path(shadow, "shadow"), msgspec.json.encode(Shadow(str(leader))))


def ask(leader: Path, to: Path) -> None:
    """Ask the leader to plan no more epochs, and to hand over."""
    check(leader, Event.ASK)
    write_whole(_path(leader, "fence"), msgspec.json.encode(_Fence(str(to))))


def forget(leader: Path) -> None:
    """Let the leader go on: the shadow that asked it to hand over is gone. Raises `HandedOver`."""
    check(leader, Event.FORGET)
    _remove(leader, "fence")


def replace(leader: Path, by: Path) -> None:
    """Let the leader never start again: its sinks are about to hold what another one wrote.

    Raises `HandedOver` if another one leads already.
    """
    check(leader, Event.REPLACE)
    write_whole(_path(leader, "fence"), msgspec.json.encode(_Fence(str(by), closed=True)))


def give_back(leader: Path) -> None:
    """Let the leader start again: its sinks hold nothing of the one that began to replace it."""
    check(leader, Event.GIVE_BACK)
    _remove(leader, "fence")


def hand_over(leader: Path, epoch: int) -> None:
    """Say that nothing is written from here any more, to the one that has asked for it."""
    check(leader, Event.HAND_OVER)
    to = fenced_by(leader)
    assert to is not None, "its fence says who"
    write_whole(_path(leader, "handed-over"), msgspec.json.encode(Successor(str(to), epoch)))


def take_over(checkpoint: Path) -> bool:
    """Let a shadow know where its leader ended; whether it will lead, or leads already."""
    shadow = shadow_of(checkpoint)
    if shadow is None or shadow.until is not None:
        return True
    handed = successor_of(Path(shadow.leader))
    if handed is None or Path(handed.to) != checkpoint:
        return False
    check(checkpoint, Event.TAKE_OVER)
    known = msgspec.structs.replace(shadow, until=handed.epoch)
    write_whole(_path(checkpoint, "shadow"), msgspec.json.encode(known))
    return True


def lead(checkpoint: Path) -> None:
    """Follow no leader any more: the epochs that were the leader's are written anew from here."""
    check(checkpoint, Event.LEAD)
    _remove(checkpoint, "shadow")


def begin_rewind(checkpoint: Path, epoch: int) -> None:
    """Let the next start go on with a rewind to this epoch. Raises `RestoreUnfinished`."""
    check(checkpoint, Event.REWIND)
    write_whole(_path(checkpoint, "restoring"), msgspec.json.encode(Rewind(epoch)))


def end_rewind(checkpoint: Path) -> None:
    """The rewind is complete."""
    check(checkpoint, Event.REWOUND)
    _remove(checkpoint, "restoring")


def begin_restore(checkpoint: Path, restore: Restore) -> None:
    """Refuse every start of the checkpoint until `end_restore`."""
    check(checkpoint, Event.RESTORE)
    write_whole(_path(checkpoint, "restoring-savepoint"), msgspec.json.encode(restore))
    remote.publish(checkpoint)  # sinks lose rows next


def end_restore(checkpoint: Path) -> None:
    """The restore is complete."""
    check(checkpoint, Event.RESTORED)
    _remove(checkpoint, "restoring-savepoint")


def _refuse_role(checkpoint: Path) -> None:
    if (handed := successor_of(checkpoint)) is not None:
        raise HandedOver(
            f"The checkpoint {shown(checkpoint)} has handed over to {handed.to}.",
            hint="Start the pipeline again: it goes on from there.",
        )
    if (fence := _fence(checkpoint)) is not None and fence.closed:
        raise HandedOver(
            f"{fence.to} has begun to take the place of the checkpoint {shown(checkpoint)}, and "
            "was cut short.",
            hint=f"Let it end: catchwater pipeline rebuild FILE --label {Path(fence.to).name}",
        )
    if role_of(checkpoint) is Role.FOLLOWS and (shadow := shadow_of(checkpoint)) is not None:
        raise HandedOver(
            f"The checkpoint {checkpoint} follows {shadow.leader}, which still leads.",
            hint="Name that one in the pipeline's file.",
        )


# Time for a shadow to catch up.


def set_pace(leader: Path, interval_ms: int, until_ms: int) -> None:
    """Ask the leader for so long between two epochs, until this time by the clock."""
    write_whole(_path(leader, "pace"), msgspec.json.encode(_Pace(interval_ms, until_ms)))


def pace(leader: Path, now_ms: int) -> int:
    """How long the leader is to leave between two epochs now, ms."""
    asked = read_json(_path(leader, "pace"), _Pace)
    return asked.interval_ms if asked and now_ms < asked.until_ms else 0


# One change of the version at a time.


@contextmanager
def alone(checkpoint: Path, clock: Clock) -> Iterator[None]:
    """Keep other processes from changing the version meanwhile. Raises `AnotherChange`."""
    with ExitStack() as held:
        try:
            held.enter_context(lock(checkpoint, clock, name=CHANGE, wait_s=0))
        except CheckpointInUse as error:
            raise AnotherChange(
                f"Process {holder(checkpoint, CHANGE) or 'unknown'} is upgrading "
                f"{shown(checkpoint)}, or rolling it back, already.",
                hint="Wait until it has ended, or end it: Ctrl-C, or SIGTERM.",
            ) from error
        yield


@contextmanager
def stopped(checkpoint: Path, clock: Clock) -> Iterator[None]:
    """Hold a checkpoint that still leads, and stays so; the pipeline was asked to stop.

    The caller is `alone`, so a version that had asked to take over and did not is gone, and its
    fence would only let a later start hand over to it. Raises `CheckpointInUse`, `HandedOver`.
    """
    with lock(checkpoint, clock):
        forget(checkpoint)  # refused if it has handed over when it was stopped
        finish_rewind(checkpoint)
        yield


# Before a start: what was cut short is ended.


def make_ready(checkpoint: Path, clock: Clock) -> None:
    """End what was cut short, before a start. The caller holds the lock.

    Raises `HandedOver`, `RestoreUnfinished` where no driver may start here.
    """
    forget_dead_shadow(checkpoint)
    finish_rewind(checkpoint)
    respell(checkpoint)
    if last_commit(checkpoint) >= 0:
        name_query(checkpoint, clock)


def forget_dead_shadow(checkpoint: Path) -> None:
    """Let a checkpoint go on whose shadow died before it was handed over to.

    The caller holds the checkpoint's lock. Raises what `check` does.
    """
    check(checkpoint, Event.START)
    if role_of(checkpoint) is Role.ASKED and holder(checkpoint, CHANGE) is None:
        forget(checkpoint)


def finish_rewind(checkpoint: Path) -> None:
    """Complete a rewind that was interrupted, if there is one. The caller holds the lock."""
    under_way = rewind_under_way(checkpoint)
    if under_way is None:
        return
    aside = Ledger(checkpoint).replayed
    for path in files_after(checkpoint, under_way.epoch):
        move(path, aside / path.parent.name)
    # Spark does not start from a batch without the offsets of the one before, which lies between
    # two restore points perhaps.
    before = under_way.epoch - 1
    if before >= 0 and not (checkpoint / "offsets" / str(before)).exists():
        if (entry := Ledger(checkpoint).read(under_way.epoch)) is not None:
            write_offset(checkpoint, entry.start)
    end_rewind(checkpoint)


def _remove(checkpoint: Path, name: str) -> None:
    _path(checkpoint, name).unlink(missing_ok=True)
    sync_folder(checkpoint / FOLDER)


def _path(checkpoint: Path, name: str) -> Path:
    return checkpoint / FOLDER / f"{name}.json"
