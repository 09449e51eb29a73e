"""What a pipeline has done, in words: inputs processed, outputs in each sink, state, and the rest.

Told from the ledger and from what the sinks say of themselves, so it is the truth wherever the last
process was when it died: an epoch is planned (Spark's offset file), staged by the shards, committed
to one sink after the other, entered in the ledger, and at last in Spark's commits. Up to the
ledger's newest entry everything is processed, every exactly-once sink has all outputs, and state is
durable. Behind it is one epoch at most, which the next start runs again to the same end.

Pure: the files were read by `intact.look`, and the sinks were asked by the caller.
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from catchwater.recovery.intact import Look
from catchwater.recovery.ledger import EpochEntry, OffsetMap, SourceOffset

SinkEpochs = Mapping[str, int | str | None]
"""Sink → the newest epoch it has a mark of, None if none, or why that is not known."""


class Stretch(msgspec.Struct, frozen=True):
    """Records of one partition: from `first` up to and without `end`."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def records(self) -> int:
        """How many offsets that is."""
        return max(0, self.end - self.first)


class SinkHas(msgspec.Struct, frozen=True):
    """What one sink has."""

    sink: str
    epoch: int | None
    """The newest epoch of which it has all outputs; None: none, or not known."""
    words: str


class InFlight(msgspec.Struct, frozen=True):
    """The epoch that was under way: the next start runs it again."""

    epoch: int
    inputs: list[Stretch]
    """What it reads."""
    records: int
    has: list[str]
    """Sinks that have its outputs already; they will not be written again."""
    done: bool
    """In the ledger: only Spark's own note of it is missing."""
    words: str


class Account(msgspec.Struct, frozen=True):
    """What is done, and what is not."""

    epoch: int | None
    """The newest that is done; None: none is, or the ledger cannot say."""
    inputs: list[Stretch]
    """Processed, from the pipeline's beginning on."""
    records: int
    tables: list[Stretch]
    """Of the compacted topics that functions look things up in: read so far."""
    keys: int
    state_bytes: int
    shards: int
    sinks: list[SinkHas]
    in_flight: InFlight | None
    words: list[tuple[str, str]]
    """All of it, by subject."""


def account(
    found: Look,
    beginning: SourceOffset | None,
    sinks: SinkEpochs,
    *,
    unmarked: Iterable[str] = (),
    recorded: Sequence[int] = (),
    under_way: str = "",
) -> Account:
    """What the files and the sinks say.

    `beginning` is where epoch 0 started; `unmarked` are sinks that are written at least once and
    keep no marks; `recorded` are the epochs that a restore went back behind, which run again;
    `under_way` says what is being done to the checkpoint itself, if anything is.
    """
    by_epoch = {entry.epoch: entry for entry in found.entries}
    newest = by_epoch.get(found.last + 1) or by_epoch.get(found.last)
    end = newest.end if newest else beginning if found.last < 0 else None
    inputs = _between(beginning, end, "offsets")
    tables = _between(beginning, end, "tables")
    in_flight = _in_flight(found, newest, end, sinks, {*unmarked})
    done = newest.epoch if newest else None
    is_known = newest is not None or found.last < 0
    sink_states = [
        _sink(name, has, newest, {*unmarked}, recorded)
        if is_known or isinstance(has, str)
        else SinkHas(name, has, "has no epoch" if has is None else f"has epochs up to {has}")
        for name, has in sorted(sinks.items())
    ]
    records = sum(each.records for each in inputs)
    keys, size = (newest.total(name) if newest else 0 for name in ("keys", "state_bytes"))
    shards = len(newest.shards) if newest else 0
    words = [
        ("inputs", _processed(found, newest, inputs, records)),
        *([("tables", _spelled(tables))] if tables else []),
        ("state", _state(newest, keys, size, shards)),
        *((f"sink {each.sink}", each.words) for each in sink_states),
        ("in flight", in_flight.words if in_flight else "nothing"),
        *([("under way", under_way)] if under_way else []),
    ]
    return Account(
        done, inputs, records, tables, keys, size, shards, sink_states, in_flight, words
    )  # fmt: skip


def _between(first: SourceOffset | None, end: SourceOffset | None, of: str) -> list[Stretch]:
    """From one offset to another, by topic and partition."""
    if end is None:
        return []
    began: OffsetMap = getattr(first, of) if first else {}
    ended: OffsetMap = getattr(end, of)
    return [
        Stretch(topic, int(number), began.get(topic, {}).get(number, 0), at)
        for topic, partitions in sorted(ended.items())
        for number, at in sorted(partitions.items(), key=lambda each: int(each[0]))
    ]


def _processed(
    found: Look, newest: EpochEntry | None, inputs: Sequence[Stretch], records: int
) -> str:
    if newest is None and found.last >= 0:
        return f"unknown: the ledger's entry of epoch {found.last} cannot be read"
    if newest is None:
        return "no epoch is done yet"
    return f"{_count(records, 'record')} processed by epoch {newest.epoch}: {_spelled(inputs)}"


def _state(newest: EpochEntry | None, keys: int, size: int, shards: int) -> str:
    if newest is None:
        return "none is durable yet"
    held = f"{_count(keys, 'key')} and {_count(size, 'byte')} in {_count(shards, 'shard')}"
    return f"durable as epoch {newest.epoch} left it: {held}"


def _sink(
    name: str,
    has: int | str | None,
    newest: EpochEntry | None,
    unmarked: set[str],
    recorded: Sequence[int],
) -> SinkHas:
    done = newest.epoch if newest else -1
    if isinstance(has, str):
        return SinkHas(name, None, f"unknown: {has}")
    if name in unmarked:
        said = "is written at least once and keeps no marks: it has every output of these inputs"
        return SinkHas(name, None, said if newest else f"{said.partition(':')[0]}")
    if has is None:
        is_new = newest is None or name not in newest.sinks
        said = "has nothing yet" if is_new else f"lacks its epochs, up to {done}: they were lost"
        return SinkHas(name, None, said)
    ahead = f"has every output of these inputs, and those of epoch {has} already"
    if has == done + 1 and has not in recorded:
        return SinkHas(name, has, ahead if newest else f"has the outputs of epoch {has} already")
    if has > done and has <= max(recorded, default=-1):
        said = f"has epochs up to {has}; those after {done} run again and are not written twice"
        return SinkHas(name, has, said)
    if has > done:
        return SinkHas(name, has, f"has epochs up to {has}, of which this checkpoint knows nothing")
    if has < done:
        return SinkHas(name, has, f"ends at epoch {has}: it lacks epochs {has + 1} to {done}")
    return SinkHas(name, has, f"has every output of these inputs, up to epoch {has}")


def _in_flight(
    found: Look,
    newest: EpochEntry | None,
    end: SourceOffset | None,
    sinks: SinkEpochs,
    unmarked: set[str],
) -> InFlight | None:
    epoch, is_done = found.last + 1, newest is not None and newest.epoch > found.last
    planned = newest.end if is_done and newest else found.planned
    if planned is None or planned.epoch != epoch:
        return None
    begin = newest.start if is_done and newest else end
    inputs = [each for each in _between(begin, planned, "offsets") if each.records]
    records = sum(each.records for each in inputs)
    has = sorted(
        name for name, at in sinks.items()
        if isinstance(at, int) and at >= epoch and name not in unmarked
    )  # fmt: skip
    if is_done:
        words = (
            f"epoch {epoch} is in the ledger, and Spark's note of it is missing: the next start "
            "runs it again, to the same end, and no sink is written twice"
        )
        return InFlight(epoch, inputs, records, has, True, words)
    lacking = sorted({*sinks} - {*has})
    placed = f"its outputs are in {', '.join(has)}" if has else "its outputs are in no sink"
    if has and lacking:
        placed += f" and not in {', '.join(lacking)}"
    again = "; it may be written twice to " + ", ".join(sorted(unmarked)) if unmarked else ""
    read = _spelled(inputs) or "no input"
    words = (
        f"epoch {epoch}, {_count(records, 'record')} ({read}): {placed}; the next start runs it "
        f"again, to the same end{again}"
    )
    return InFlight(epoch, inputs, records, has, False, words)


def _spelled(stretches: Iterable[Stretch]) -> str:
    return ", ".join(
        f"{each.topic}-{each.partition} offsets {each.first} to {each.end}" for each in stretches
    )


def _count(number: int, what: str) -> str:
    spaced = f"{number:_}".replace("_", " ")
    return f"{spaced} {what}" if number == 1 else f"{spaced} {what}s"
