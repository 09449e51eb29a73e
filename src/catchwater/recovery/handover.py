"""Two drivers of one pipeline: the one that leads, and a shadow beside it that takes over.

A *shadow* is a checkpoint of its own. Its epochs end where the leader's ended and are written to no
sink, until the leader has handed over; from the epoch after on it leads. Four small files say who
is where, all written whole:

- `shadow.json` in the shadow: whom it follows, and, once it is known, the leader's last epoch;
- `pace.json` in the leader: plan epochs no faster than this, for a while, that the shadow can
  catch up; it runs out by itself, so a shadow that dies slows nobody down;
- `fence.json` in the leader: plan no more epochs; once it is closed, do not even start;
- `handed-over.json` in the leader: nothing is written from here any more, go on over there.

A leader that is killed leaves its lock; whoever takes that may say for it that it has handed over.
Who looks for the pipeline's checkpoint follows the last file (`current`).
"""

from pathlib import Path

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import (
    FOLDER,
    EpochEntry,
    Ledger,
    LedgerDamaged,
    SourceOffset,
    read_json,
    sync_folder,
    write_whole,
)

_MOST_HANDOVERS = 1000


class HandedOver(CatchwaterError):
    """The checkpoint has handed over to another one, or another one's outputs are in its sinks."""

    exit_code = 5


class Shadow(msgspec.Struct, frozen=True):
    """Whom a checkpoint follows."""

    leader: str
    until: int | None = None
    """The leader's last epoch; None: it still leads."""

    def covers(self, epoch: int) -> bool:
        """Whether this epoch is the leader's."""
        return self.until is None or epoch <= self.until


class Handed(msgspec.Struct, frozen=True):
    """Who leads now."""

    to: str
    epoch: int
    """The last one that was written from here."""


class _Pace(msgspec.Struct, frozen=True):
    interval_ms: int
    until_ms: int


class _Fence(msgspec.Struct, frozen=True):
    to: str
    closed: bool = False
    """The sinks may hold what the other one has written, and none of this one's."""


def current(checkpoint: Path) -> Path:
    """The checkpoint that the pipeline goes on from: this one, or the one it has handed over to.

    Raises `LedgerDamaged`.
    """
    found, damage = followed(checkpoint)
    if damage is not None:
        raise damage
    return found


def followed(checkpoint: Path) -> tuple[Path, LedgerDamaged | None]:
    """The same as far as it can be read, and what cannot be."""
    for _ in range(_MOST_HANDOVERS):
        try:
            handed = read_handed(checkpoint)
        except LedgerDamaged as damage:
            return checkpoint, damage
        if handed is None:
            break
        checkpoint = Path(handed.to)
    return checkpoint, None


def follow(shadow: Path, leader: Path) -> None:
    """Make a checkpoint the shadow of another."""
    write_whole(_path(shadow, "shadow"), msgspec.json.encode(Shadow(str(leader))))


def shadow_of(checkpoint: Path) -> Shadow | None:
    """Whom the checkpoint follows or has followed; None: it always led."""
    return read_json(_path(checkpoint, "shadow"), Shadow)


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


def set_pace(leader: Path, interval_ms: int, until_ms: int) -> None:
    """Ask the leader for so long between two epochs, until this time by the clock."""
    write_whole(_path(leader, "pace"), msgspec.json.encode(_Pace(interval_ms, until_ms)))


def pace(leader: Path, now_ms: int) -> int:
    """How long the leader is to leave between two epochs now, ms."""
    asked = read_json(_path(leader, "pace"), _Pace)
    return asked.interval_ms if asked and now_ms < asked.until_ms else 0


def fence(leader: Path, to: Path, *, closed: bool = False) -> None:
    """Ask the leader to plan no more epochs, and to hand over; or, `closed`, never to start."""
    write_whole(_path(leader, "fence"), msgspec.json.encode(_Fence(str(to), closed)))


def lift_fence(leader: Path) -> None:
    """Let the leader go on: nothing has taken its place. The caller holds the leader's lock."""
    _path(leader, "fence").unlink(missing_ok=True)
    sync_folder(leader / FOLDER)


def check_leads(checkpoint: Path) -> None:
    """Raise `HandedOver` where no driver may start any more. The caller holds the lock.

    A driver that waited for the lock was told of this checkpoint before another one took over.
    """
    if (handed := read_handed(checkpoint)) is not None:
        raise HandedOver(
            f"The checkpoint {checkpoint} has handed over to {handed.to}.",
            hint="Start the pipeline again: it goes on from there.",
        )
    asked = read_json(_path(checkpoint, "fence"), _Fence)
    if asked is not None and asked.closed:
        raise HandedOver(
            f"{asked.to} has begun to take the place of the checkpoint {checkpoint}, and was cut "
            "short.",
            hint=f"Let it end: catchwater pipeline rebuild FILE --label {Path(asked.to).name}",
        )


def fenced_by(leader: Path) -> Path | None:
    """To whom the leader is asked to hand over."""
    asked = read_json(_path(leader, "fence"), _Fence)
    return Path(asked.to) if asked else None


def hand_over(leader: Path, epoch: int) -> None:
    """Say that nothing is written from here any more. The caller holds the leader's lock."""
    to = fenced_by(leader)
    assert to is not None, "who hands over was asked to"
    write_whole(_path(leader, "handed-over"), msgspec.json.encode(Handed(str(to), epoch)))


def read_handed(leader: Path) -> Handed | None:
    """Whether, to whom and where the leader has handed over."""
    return read_json(_path(leader, "handed-over"), Handed)


def take_over(checkpoint: Path) -> bool:
    """Let a shadow know where its leader ended; whether it will lead, or leads already."""
    shadow = shadow_of(checkpoint)
    if shadow is None or shadow.until is not None:
        return True
    handed = read_handed(Path(shadow.leader))
    if handed is None or Path(handed.to) != checkpoint:
        return False
    known = msgspec.structs.replace(shadow, until=handed.epoch)
    write_whole(_path(checkpoint, "shadow"), msgspec.json.encode(known))
    return True


def lead(checkpoint: Path) -> None:
    """Follow nobody any more: the epochs that were the leader's are written anew from here."""
    _path(checkpoint, "shadow").unlink(missing_ok=True)
    sync_folder(checkpoint / FOLDER)


def _path(checkpoint: Path, name: str) -> Path:
    return checkpoint / FOLDER / f"{name}.json"
