"""What a history tells of one partition, and what is wrong with it.

Pure. `Partition` collects while the history is read; `judge` runs once, when all is known: which
values had to be seen, which were, and who jumped over one of them. A send whose outcome nobody
knows may or may not have happened: it owes nothing until somebody reads it.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from catchwater.drill.history import Type, Value

Tell = Callable[[str, str, tuple[int, ...]], None]
"""Report an anomaly: its class, a sentence, the numbers of the lines that show it."""

NO_TXN = -1


@dataclass(slots=True)
class Sent:
    """A value somebody sent; `line` is where it was last spoken of."""

    process: int
    txn: int
    key: str | None
    line: int
    outcome: Type = "info"
    offset: int | None = None


class Gap(NamedTuple):
    """A reader went from one offset to a later one that is not the next."""

    anomaly: str
    line: int
    after: int
    before: int


@dataclass(slots=True)
class Partition:
    """One partition as the history shows it, from every client's side."""

    name: str
    sends: dict[Value, Sent] = field(default_factory=dict)
    """In the order in which they were first spoken of, which is each process's own."""
    values: dict[int, Value] = field(default_factory=dict)
    offsets: dict[Value, int] = field(default_factory=dict)
    polled: dict[Value, int] = field(default_factory=dict)
    """Value -> first line that polled it, at any isolation level."""
    read: dict[Value, int] = field(default_factory=dict)
    """Value -> first line that polled it at read_committed."""
    tombstones: list[tuple[str | None, int | None]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    highest_read: int = -1
    trimmed: int = 0
    is_compacted: bool = False
    final_line: int = 0
    """The last line of its final polls; 0 while there were none."""
    final: set[Value] = field(default_factory=set)
    """What the final polls showed."""
    floor: int = 0
    """What the watermark has been at least, by anybody's word."""

    def place(self, offset: int, value: Value, line: int, tell: Tell) -> None:
        """Somebody says that this value lies at this offset."""
        known = self.values.setdefault(offset, value)
        if known != value:
            what = f"{self.name}, offset {offset}: both {known!r} and {value!r}"
            tell("inconsistent-offsets", what, (line,))
        if value is None:
            return
        first = self.offsets.setdefault(value, offset)
        if first != offset:
            tell("duplicate", f"{self.name}: {value!r} at {first} and at {offset}", (line,))

    def judge(self, tell: Tell) -> None:
        """Everything that can only be said once the whole history is known."""
        self._judge_order(tell)
        for value, line in self.read.items():
            sent = self.sends.get(value)
            if sent is None:
                if self.sends:
                    tell("garbage", f"{self.name}: {value!r} was never sent", (line,))
            elif sent.outcome == "fail":
                what = f"{self.name}: {value!r} failed or was aborted, and was read"
                tell("G1a", what, (sent.line, line))
        owed = dict(self._owed())
        self._judge_losses(owed, tell)
        self._judge_gaps(sorted(offset for offset in owed.values() if offset is not None), tell)

    def _judge_order(self, tell: Tell) -> None:
        """What one process sent one after the other lies so in the log."""
        last: dict[int, Sent] = {}
        for value, sent in self.sends.items():
            if sent.offset is None:
                continue
            before = last.get(sent.process)
            if before is not None and before.offset is not None and sent.offset < before.offset:
                inside = sent.txn != NO_TXN and sent.txn == before.txn
                anomaly = "int-nonmonotonic-send" if inside else "nonmonotonic-send"
                what = f"{self.name}: {value!r} was sent after the record at {before.offset}"
                tell(anomaly, f"{what} and lies at {sent.offset}", (before.line, sent.line))
            last[sent.process] = sent

    def _owed(self) -> Iterator[tuple[Value, int | None]]:
        """The values that must be found in the log for ever, with their offsets if known."""
        visible = {
            value: self.offsets.get(value)
            for value, sent in self.sends.items()
            if sent.outcome == "ok" or value in self.read
        }
        last = self._last_of_each_key(visible) if self.is_compacted else {}
        for value, offset in visible.items():
            key = self.sends[value].key
            if offset is None:
                # Nobody knows where it lies, so neither whether it may have been deleted.
                if not self.trimmed and not self.is_compacted:
                    yield value, offset
            elif offset >= self.trimmed and offset >= last.get(key, -1):
                yield value, offset

    def _last_of_each_key(self, visible: dict[Value, int | None]) -> dict[str | None, float]:
        """Key -> offset below which its values may be gone; a record without a key has no other."""
        last: dict[str | None, float] = {}
        places = [(self.sends[value].key, offset) for value, offset in visible.items()]
        for key, offset in [*places, *self.tombstones]:
            if key is not None:
                at = float("inf") if offset is None else offset
                last[key] = max(last.get(key, -1), at)
        return last

    def _judge_losses(self, owed: dict[Value, int | None], tell: Tell) -> None:
        for value, offset in owed.items():
            sent = self.sends[value]
            if value not in self.polled and offset is not None and offset < self.highest_read:
                what = f"{self.name}: {value!r} at {offset} was acknowledged and never polled"
                tell("lost-write", f"{what}, but {self.highest_read} was", (sent.line,))
            elif value not in self.final and sent.line < self.final_line:
                what = f"{self.name}: {value!r} was acknowledged and is in no final poll"
                tell("unseen", what, (sent.line, self.final_line))

    def _judge_gaps(self, owed: list[int], tell: Tell) -> None:
        for anomaly, line, after, before in self.gaps:
            at = bisect_right(owed, after)
            if at < len(owed) and owed[at] < before:
                what = f"{self.name}: from {after} to {before}, over the record at {owed[at]}"
                tell(anomaly, what, (line,))
