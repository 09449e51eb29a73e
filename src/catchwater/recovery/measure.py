"""How long a restore took, measured while it happens: what the next estimates rest on.

A restore begins with the pipeline's process and is over when an epoch ends at or behind the tail
that the log had then. It is measured only where there was something to catch up with; else the
time would be that of waiting for input. Pure but for the file of samples.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path

import msgspec

from catchwater.recovery.contract import RestoreSample
from catchwater.recovery.ledger import (
    EpochEntry,
    Ledger,
    LedgerDamaged,
    ShardEpoch,
    read_lines,
    write_whole,
)


class RestoreWatch:
    """Watches the epochs of one start, from `began_s` (monotonic) on."""

    def __init__(self, began_s: float, tail: Mapping[tuple[str, int], int], tasks: int) -> None:
        self._began_s = began_s
        self._tail = tail
        self._tasks = tasks
        self._first: EpochEntry | None = None
        self._first_s = 0.0
        self._records = 0

    def epoch_done(self, entry: EpochEntry, now_s: float) -> RestoreSample | None:
        """Take an epoch that was committed; the sample, once the tail is reached."""
        if self._first is None:
            self._first, self._first_s = entry, now_s
        else:
            self._records += entry.total("events")
        if not self._reached(entry):
            return None
        first = self._first
        state_s = sum(shard.restore_s for shard in first.shards) / self._tasks
        return RestoreSample(
            epoch=first.epoch,
            startup_s=round(self._first_s - self._began_s - state_s, 3),
            state_bytes=first.total("rebuilt_bytes"),
            state_s=round(state_s, 3),
            replay_records=self._records,
            replay_s=round(now_s - self._first_s, 3),
        )

    def _reached(self, entry: EpochEntry) -> bool:
        offsets = entry.end.offsets
        return all(
            offsets.get(topic, {}).get(str(partition), 0) >= end
            for (topic, partition), end in self._tail.items()
        )


def parts_ms(entry: EpochEntry) -> dict[str, float]:
    """Where an epoch's time went, ms; empty if it was not measured.

    `source` is reading, decoding and shuffling; `function` the whole chain, one function after the
    other, each as long as its slowest shard; `sinks` their commits.
    """
    if not entry.run_ms:
        return {}
    stages: dict[int, float] = {}
    for shard in entry.shards:
        stages[shard.stage] = max(stages.get(shard.stage, 0.0), shard.operator_ms)
    function = sum(stages.values())
    source = max(0.0, entry.run_ms - function)
    return {"source": source, "function": function, "sinks": sum(entry.sink_ms.values())}


def operator_ms(shards: Iterable[ShardEpoch], *shares: float) -> list[float]:
    """How long events were in the operator, ms: what so large a share of them did not exceed.

    All events of a shard's epoch are in it for as long as the epoch takes there. Without events: 0.
    """
    by_time = sorted((each.operator_ms, each.events) for each in shards if each.events)
    if not by_time:
        return [0.0] * len(shares)
    reached = list(accumulate(events for _, events in by_time))
    return [by_time[bisect_left(reached, share * reached[-1])][0] for share in shares]


def read_samples(folder: Path) -> list[RestoreSample]:
    """The restores measured so far, oldest first. Raises `LedgerDamaged`."""
    return read_lines(_path(folder), RestoreSample)


def load_samples(folder: Path) -> list[RestoreSample]:
    """The same, or none where they cannot be read: no pipeline fails for an estimate."""
    try:
        return read_samples(folder)
    except LedgerDamaged:
        return []


def add_sample(folder: Path, sample: RestoreSample) -> None:
    """Remember one more measured restore."""
    lines = [msgspec.json.encode(each) for each in [*load_samples(folder), sample]]
    write_whole(_path(folder), b"\n".join(lines) + b"\n")


def _path(folder: Path) -> Path:
    return Ledger(folder).folder / "restores.jsonl"
