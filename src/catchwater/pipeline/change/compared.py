"""What two versions put out for the same epoch, row by row.

Both have staged their outputs, which are kept; a row is its key and its JSON. Order does not count,
nor which shard put it out. Reads only.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

import msgspec

from catchwater.sinks.base import Truth

_SHOWN = 3


class Compared(msgspec.Struct, frozen=True):
    """One epoch of one sink."""

    epoch: int
    sink: str
    same: int
    only_old: int
    only_new: int
    examples: list[str] = []
    """A few rows that only one of them has, as `- old` and `+ new`."""


class Comparison(msgspec.Struct, frozen=True):
    """All epochs that both have done."""

    epochs: int = 0
    same: int = 0
    only_old: int = 0
    only_new: int = 0
    examples: list[str] = []

    def with_epoch(self, found: Iterable[Compared]) -> "Comparison":
        """One epoch more."""
        told = list(found)
        return Comparison(
            self.epochs + 1,
            self.same + sum(each.same for each in told),
            self.only_old + sum(each.only_old for each in told),
            self.only_new + sum(each.only_new for each in told),
            [*self.examples, *(line for each in told for line in each.examples)][: 4 * _SHOWN],
        )

    @property
    def differs(self) -> bool:
        """Whether any row is not in both."""
        return bool(self.only_old or self.only_new)


def compare(epoch: int, old: Mapping[str, Truth], new: Mapping[str, Truth]) -> list[Compared]:
    """One epoch in all sinks that both have."""
    return [_compare(epoch, name, old[name], new[name]) for name in sorted(old.keys() & new.keys())]


def _compare(epoch: int, sink: str, old: Truth, new: Truth) -> Compared:
    before, after = _rows(old, epoch), _rows(new, epoch)
    gone, come = before - after, after - before
    examples = [f"- {_shown(row)}" for row in list(gone)[:_SHOWN]]
    examples += [f"+ {_shown(row)}" for row in list(come)[:_SHOWN]]
    same = sum((before & after).values())
    return Compared(epoch, sink, same, sum(gone.values()), sum(come.values()), examples)


def _rows(truth: Truth, epoch: int) -> Counter[tuple[bytes, bytes]]:
    return Counter((row.record.key, row.record.value) for row in truth.rows(epoch))


def _shown(row: tuple[bytes, bytes]) -> str:
    return row[1].decode(errors="replace")
