"""Restore points: which epochs one can go back to, chosen by time, and what is kept of the others.

Every epoch commits its outputs. Without `[recovery] checkpoints` each of the newest few can be
restored. With `checkpoints = "60s"` one epoch of every 60 s is a restore point for as long as
`retain` says, and behind the newest point everything is kept. Of an epoch between two points there
is no state, entry or contract, and no file of Spark's, but where it ended and what the sinks made
of it (`Ledger.pass_over`): a restore that goes back behind it runs it again to the same end
(docs/decisions/0001), and a sink that has forgotten its mark of it is not given it twice.

`PointPolicy.choose` is pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from catchwater.recovery.checkpoint import Checkpoint, forget, move, read_one
from catchwater.recovery.ledger import Ledger, LedgerDamaged, Passed, numbered

NEWEST = 5
"""How many of the newest epochs are always kept whole, so that a broken one costs little replay."""
MOST = 2000
"""Restore points, unless the file says otherwise; each is a pin, and some files."""


class Choice(NamedTuple):
    """What one can go back to."""

    points: list[Checkpoint]
    """Oldest first; at least one, where there is any epoch."""
    whole_from: int
    """From this epoch on everything is kept."""

    def covering(self, epoch: int) -> int:
        """The newest restore point that is not younger: its pin holds what this epoch needs."""
        older = [each.epoch for each in self.points if each.epoch <= epoch]
        return older[-1] if older else self.points[0].epoch


@dataclass(frozen=True, slots=True)
class PointPolicy:
    """How much of its past a pipeline keeps: `checkpoints`, `retain` and `retain_most`."""

    most: int = NEWEST
    """Restore points."""
    every_ms: int = 0
    """How far apart they are; 0: every epoch is one."""
    span_ms: int | None = None
    """How far back they go; None: as far as so many reach."""

    @property
    def window_ms(self) -> int | None:
        """How far back one can go at least, once there are so many points; None: unknown."""
        if not self.every_ms:
            return None
        reach_ms = self.most * self.every_ms
        return reach_ms if self.span_ms is None else min(reach_ms, self.span_ms)

    def choose(self, committed: Sequence[Checkpoint]) -> Choice:
        """Choose among the epochs that are there, oldest first; what was chosen stays so.

        An epoch becomes a point when it is no longer among the newest, so that a gap is forgotten
        at once. The clock is that of the newest epoch: a pipeline that stood still loses nothing.
        """
        if not self.every_ms:
            points = list(committed[-self.most :])
            return Choice(points, points[0].epoch)
        points = []
        for each in committed[:-NEWEST] or committed[:1]:
            if not points or each.end.clock_ms >= points[-1].end.clock_ms + self.every_ms:
                points.append(each)
        return Choice(self._young_enough(points, committed[-1].end.clock_ms), points[-1].epoch)

    def _young_enough(self, points: list[Checkpoint], now_ms: int) -> list[Checkpoint]:
        """The points within the span, and the one right before it, which leads to its beginning."""
        points = points[-self.most :]
        if self.span_ms is None:
            return points
        beyond = [each for each in points if each.end.clock_ms <= now_ms - self.span_ms]
        return points[max(0, len(beyond) - 1) :]


def thin(folder: Path, kept: PointPolicy, choice: Choice, held: Sequence[int]) -> None:
    """Forget what lies between restore points and before the oldest, but from a held epoch on.

    Where epochs ended is written before their files go; a process that dies in between has it done
    again by the next.
    """
    ledger = Ledger(folder)
    oldest = min([choice.points[0].epoch, *held])
    if kept.every_ms:
        whole_from, points = min([choice.whole_from, *held]), {each.epoch for each in choice.points}
        gone = [each for each in _epochs(folder) if each < whole_from and each not in points]
        known = [(first, last) for first, last, _ in ledger.passed_files()]
        fresh = (e for e in gone if e > oldest and not any(a <= e <= b for a, b in known))
        for gap in _runs(fresh):
            if passed := list(_passed(folder, gap)):
                ledger.pass_over(passed)
        for epoch in gone:
            forget(folder, epoch)
    for _first, last, path in ledger.passed_files():
        if last < oldest:
            path.unlink(missing_ok=True)


def _epochs(folder: Path) -> list[int]:
    """The epochs that have any file."""
    ours = Ledger(folder).folder
    logs = (folder / "offsets", ""), (folder / "commits", "")
    own = (ours / "epochs", ".json"), (ours / "contracts", ".json")
    return sorted({number for each in (*logs, *own) for number in numbered(*each)})


def _runs(epochs: Iterable[int]) -> Iterator[list[int]]:
    """The epochs in runs of consecutive ones."""
    run: list[int] = []
    for epoch in epochs:
        if run and epoch != run[-1] + 1:
            yield run
            run = []
        run.append(epoch)
    if run:
        yield run


def _passed(folder: Path, epochs: Iterable[int]) -> Iterator[Passed]:
    """What is known of these; of one whose entry is damaged, what Spark's file says."""
    for epoch in epochs:
        with suppress(LedgerDamaged):
            if (entry := Ledger(folder).read(epoch)) is not None:
                yield Passed(entry.end, entry.sinks)
                continue
        with suppress(LedgerDamaged):
            if (planned := read_one(folder, epoch)) is not None:
                yield Passed(planned.end)


def cut_off(folder: Path, epoch: int, aside: Path) -> None:
    """Take away what is known of passed epochs after this one: others are run in their place."""
    ledger = Ledger(folder)
    for _first, last, path in ledger.passed_files():
        if last <= epoch:
            continue
        with suppress(LedgerDamaged):
            if left := [each for each in ledger.read_passed(path) if each.end.epoch <= epoch]:
                ledger.pass_over(left)
        move(path, aside / path.parent.name)
