"""Which epochs of a topic are this sink's: what the catalog keeps, over all generations.

The catalog numbers a sink's epochs without gaps and never forgets one. So every generation is a
sink of its own there: `<sink>`, then `<sink>@1`, `<sink>@2` … A withdrawal is the commit of its
retractions, as `<sink>@1:withdrawn`, under the number of the first epoch it took back; records that
a repair published again are commits of `<sink>@1:repaired`, numbered by themselves.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from catchwater.replay.control import Control

WITHDRAWN, REPAIRED = ":withdrawn", ":repaired"


class LogMark(NamedTuple):
    """One commit, as the catalog has it."""

    epoch: int
    records: int
    checksum: str
    offsets: Mapping[int, tuple[int, int]]
    """Partition → (first, last) offset."""


class LogMarks:
    """The commits of one sink."""

    def __init__(self, control: Control, pipeline: str, sink: str, generation: int) -> None:
        self._control = control
        self.pipeline = pipeline
        self.sink = sink
        self.generation = generation

    def name(self, generation: int, suffix: str = "") -> str:
        """What the catalog calls a generation of the sink."""
        return (f"{self.sink}@{generation}" if generation else self.sink) + suffix

    def last(self, generation: int, suffix: str = "") -> int | None:
        """The newest epoch that this generation has committed."""
        answer = self._control.last_epoch(self.pipeline, self.name(generation, suffix))
        return None if answer is None else int(answer["epoch"])

    def read(self, generation: int, epoch: int, suffix: str = "") -> LogMark | None:
        """One commit, None if there is none."""
        answer = self._control.epoch(self.pipeline, self.name(generation, suffix), epoch)
        if answer is None:
            return None
        spans = {int(p): (int(first), int(last)) for p, (first, last) in answer["offsets"].items()}
        return LogMark(epoch, int(answer["records"]), str(answer["checksum"]), spans)

    def superseded(self) -> bool:
        """Whether a newer generation has taken over; of those that took nothing back, the next."""
        newer = range(self.generation + 1, self.generation + 3)
        return any(self.last(g, suffix) is not None for g in newer for suffix in (WITHDRAWN, ""))

    def spans(self) -> Iterator[tuple[int, int, int, int]]:
        """(generation, first epoch it may have, last live one, last one), newest first.

        Epochs after the last live one were taken back by a newer generation.
        """
        live = None
        for generation in range(self.generation, -1, -1):
            begun = self.last(generation, WITHDRAWN)
            first = begun or 0
            last = self.last(generation)
            if last is not None:
                yield generation, first, last if live is None else min(last, live), last
            if begun is not None:
                live = begun - 1 if live is None else min(live, begun - 1)

    def find(self, epoch: int) -> LogMark | None:
        """The live commit of an epoch."""
        for generation, first, live, _ in self.spans():
            if first <= epoch <= live:
                mark = self.read(generation, epoch)
                if mark is not None:
                    return mark
        return None

    def last_live(self) -> int | None:
        """The newest epoch that was not taken back."""
        return max((live for _, first, live, _ in self.spans() if first <= live), default=None)
