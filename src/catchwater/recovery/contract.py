"""The recovery contract: what a restore from one checkpoint would need, and how long it takes.

Written as JSON beside every checkpoint (`contract.schema.json` says its shape) and compared with
what the log holds by `check`. The estimate is a straight line: start-up, state at so many bytes a
second, replay at so many records a second, with the constants taken from the restores that were
measured before, and from cautious defaults where there are none yet.

A restore is measured while it happens. It begins with the pipeline's process and is over when an
epoch ends at or behind the tail that the log had then. It is measured only where there was
something to catch up with; else the time would be that of waiting for input.

Pure but for the files of contracts and of samples; the log is read by others.
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.ledger import (
    EpochEntry,
    Ledger,
    LedgerDamaged,
    SinkEpoch,
    SourceOffset,
    numbered,
    read_json,
    read_lines,
    write_whole,
)

FORMAT = 2

DEFAULT_STARTUP_S = 20.0
DEFAULT_STATE_BYTES_PER_S = 20e6
DEFAULT_REPLAY_RECORDS_PER_S = 40e3
UNMEASURED_SPREAD = 0.6
"""Half-width of the error bar, as a share of the estimate, before any restore was measured."""
LEAST_SPREAD = 0.25
LAST_SAMPLES = 10
"""Older restores say little of today's machine."""

_LEAST_S = 0.05
"""Shorter spans are noise of the clock, not a rate."""


class FunctionVersion(msgspec.Struct, frozen=True):
    """Which code made the state: the function's name and version, and its source's SHA-256."""

    name: str
    version: int
    code: str


class InputPosition(msgspec.Struct, frozen=True):
    """From where a partition would be replayed, and how much there is to the tail."""

    topic: str
    partition: int
    offset: int
    log_start: int
    high_watermark: int
    records: int
    bytes: int


class StateSize(msgspec.Struct, frozen=True):
    """What a restore reads of the state, and the token of each shard ("stage-index")."""

    bytes: int
    tokens: dict[str, str]


class Estimate(msgspec.Struct, frozen=True):
    """How long a restore takes until the pipeline has caught up, seconds, with its error bar."""

    seconds: float
    low_s: float
    high_s: float
    samples: int
    """Measured restores it rests on; 0: defaults."""


class Retention(msgspec.Struct, frozen=True):
    """What the log must keep: from these offsets on, which is about this far back in time."""

    ms: int
    pin: str
    """Empty: the log has no pins."""


class Contract(msgspec.Struct, frozen=True):
    """One checkpoint's contract. Times are milliseconds since 1970 where their name ends in ms."""

    pipeline: str
    epoch: int
    written_ms: int
    functions: list[FunctionVersion]
    """Of the chain, in order."""
    watermark_ms: int
    clock_ms: int
    inputs: list[InputPosition]
    replay_records: int
    replay_bytes: int
    state: StateSize
    restore: Estimate
    max_restore_s: float | None
    retention: Retention
    sinks: dict[str, SinkEpoch]
    versions: dict[str, str]
    format: int = FORMAT


class RestoreSample(msgspec.Struct, frozen=True):
    """One restore as it was measured; a line of `restores.jsonl`."""

    epoch: int
    startup_s: float
    """From the start of the process to the first epoch, without rebuilding state."""
    state_bytes: int
    state_s: float
    replay_records: int
    replay_s: float
    """From the first epoch's end until the tail of the moment of the start was reached."""

    @property
    def seconds(self) -> float:
        """The whole of it."""
        return self.startup_s + self.state_s + self.replay_s


@dataclass(frozen=True, slots=True)
class PartitionTail:
    """What the log says of one input partition."""

    log_start: int
    high_watermark: int
    bytes: int
    """Of the records from log start to high watermark."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What does not change from checkpoint to checkpoint."""

    pipeline: str
    functions: Sequence[FunctionVersion]
    needs_history_ms: int
    max_restore_s: float | None
    versions: Mapping[str, str]
    pinned: bool = True
    """Whether the log has pins."""


@dataclass(frozen=True, slots=True)
class LogState:
    """What the log says now, for `check`."""

    tails: Mapping[tuple[str, int], PartitionTail]
    pins: Mapping[str, str]
    """Pin → its state: reserved, extended, unreserved or lost."""
    sink_epochs: Mapping[str, int | None]
    """Sink → the last epoch it has a mark of; None: it keeps none, being written at least once."""


Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of `contract check`."""

    verdict: Verdict
    subject: str
    message: str


def pin_id(pipeline: str, epoch: int) -> str:
    """The name of the pin that keeps this checkpoint's input."""
    return f"{pipeline}/{epoch}"


def compute(
    entry: EpochEntry,
    tails: Mapping[tuple[str, int], PartitionTail],
    terms: Terms,
    samples: Sequence[RestoreSample],
    *,
    oldest_clock_ms: int,
    now_ms: int,
) -> Contract:
    """The contract of the checkpoint that this epoch ends at.

    `oldest_clock_ms` is the clock of the oldest checkpoint that is still retained.
    """
    inputs = [
        _input(topic, int(partition), offset, tails[topic, int(partition)])
        for topic, partitions in sorted(entry.end.needed.items())
        for partition, offset in sorted(partitions.items(), key=lambda item: int(item[0]))
    ]
    records = sum(position.records for position in inputs)
    state_bytes = entry.total("state_bytes")
    restore = estimate(samples, state_bytes=state_bytes, replay_records=records)
    kept_ms = now_ms - oldest_clock_ms + round(restore.high_s * 1000)
    return Contract(
        pipeline=terms.pipeline,
        epoch=entry.epoch,
        written_ms=now_ms,
        functions=list(terms.functions),
        watermark_ms=entry.end.watermark_ms,
        clock_ms=entry.end.clock_ms,
        inputs=inputs,
        replay_records=records,
        replay_bytes=sum(position.bytes for position in inputs),
        state=StateSize(
            state_bytes, {f"{each.stage}-{each.shard}": each.token for each in entry.shards}
        ),
        restore=restore,
        max_restore_s=terms.max_restore_s,
        retention=Retention(
            max(kept_ms, terms.needs_history_ms),
            pin_id(terms.pipeline, entry.epoch) if terms.pinned else "",
        ),
        sinks=entry.sinks,
        versions=dict(terms.versions),
    )


def _input(topic: str, partition: int, offset: int, tail: PartitionTail) -> InputPosition:
    """Bytes to the tail are taken in proportion: batches differ less than they are worth asking."""
    held = tail.high_watermark - tail.log_start
    records = max(0, tail.high_watermark - offset)
    size = round(tail.bytes * records / held) if held > 0 else 0
    return InputPosition(
        topic, partition, offset, tail.log_start, tail.high_watermark, records, size
    )


def estimate(
    samples: Sequence[RestoreSample], *, state_bytes: int, replay_records: int
) -> Estimate:
    """Seconds until caught up, by the last measured restores."""
    recent = samples[-LAST_SAMPLES:]
    seconds = _predict(recent, state_bytes, replay_records)
    if not recent:
        spread = UNMEASURED_SPREAD
    else:
        misses = [
            abs(_predict(recent, s.state_bytes, s.replay_records) - s.seconds) / s.seconds
            for s in recent
        ]
        spread = max(LEAST_SPREAD, *misses)
    low, high = seconds * (1 - spread), seconds * (1 + spread)
    return Estimate(round(seconds, 2), round(max(0.0, low), 2), round(high, 2), len(recent))


def _predict(samples: Sequence[RestoreSample], state_bytes: int, replay_records: int) -> float:
    startups = sorted(sample.startup_s for sample in samples)
    startup_s = startups[len(startups) // 2] if startups else DEFAULT_STARTUP_S
    state = _rate([(s.state_bytes, s.state_s) for s in samples], DEFAULT_STATE_BYTES_PER_S)
    replay = _rate([(s.replay_records, s.replay_s) for s in samples], DEFAULT_REPLAY_RECORDS_PER_S)
    return startup_s + state_bytes / state + replay_records / replay


def _rate(measured: Sequence[tuple[int, float]], default: float) -> float:
    """Units a second over all that were long enough to be a measurement."""
    long = [(units, seconds) for units, seconds in measured if units and seconds > _LEAST_S]
    if not long:
        return default
    return sum(units for units, _ in long) / sum(seconds for _, seconds in long)


def check(contract: Contract, log: LogState) -> list[Finding]:
    """What of the contract holds now: input, pin, estimate against budget, sinks."""
    findings = [_covered(position, log) for position in contract.inputs]
    findings.append(_pinned(contract.retention.pin, log))
    findings.append(_in_time(contract))
    findings += [_sink(contract, name, log) for name in sorted(contract.sinks)]
    return findings


def _covered(position: InputPosition, log: LogState) -> Finding:
    name = f"{position.topic}-{position.partition}"
    tail = log.tails.get((position.topic, position.partition))
    gap = _gap(name, position.offset, tail)
    if gap is not None:
        return Finding("fail", name, gap.message)
    assert tail is not None
    return Finding("pass", name, f"offset {position.offset} to {tail.high_watermark} is there")


def _pinned(pin: str, log: LogState) -> Finding:
    if not pin:
        return Finding("warn", "pin", "nothing keeps the log: it has no pins")
    match log.pins.get(pin):
        case None:
            return Finding("warn", "pin", f"nothing keeps the log: there is no pin {pin}")
        case "lost":
            return Finding("fail", "pin", f"{pin} is lost: the log has deleted what it held")
        case "unreserved":
            over = f"{pin} holds back more than its max_bytes, so the log may delete what it holds"
            return Finding("warn", "pin", over)
    return Finding("pass", "pin", f"{pin} keeps the log from these offsets on")


def _in_time(contract: Contract) -> Finding:
    restore = contract.restore
    estimated = f"{restore.seconds:.1f} s ({restore.low_s:.1f} to {restore.high_s:.1f})"
    if contract.max_restore_s is None:
        return Finding("pass", "restore", f"{estimated}; the function declares no max_restore")
    verdict: Verdict = "pass"
    if restore.high_s > contract.max_restore_s:
        verdict = "warn" if restore.seconds <= contract.max_restore_s else "fail"
    return Finding(verdict, "restore", f"{estimated} of {contract.max_restore_s:.0f} s")


def _sink(contract: Contract, name: str, log: LogState) -> Finding:
    if name not in log.sink_epochs:
        return Finding("fail", name, "the sink has no epoch of this pipeline")
    has = log.sink_epochs[name]
    if has is None:
        return Finding("pass", name, "the sink is written at least once and keeps no marks")
    if has < contract.epoch:
        return Finding("fail", name, f"the sink ends at epoch {has}, before this checkpoint")
    return Finding("pass", name, f"the sink has epoch {contract.epoch} (last: {has})")


# Measuring.


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


def read_samples(folder: Path) -> list[RestoreSample]:
    """The restores measured so far, oldest first. Raises `LedgerDamaged`."""
    return read_lines(_samples_file(folder), RestoreSample)


def load_samples(folder: Path) -> list[RestoreSample]:
    """The same, or none where they cannot be read: no pipeline fails for an estimate."""
    try:
        return read_samples(folder)
    except LedgerDamaged:
        return []


def add_sample(folder: Path, sample: RestoreSample) -> None:
    """Remember one more measured restore."""
    lines = [msgspec.json.encode(each) for each in [*load_samples(folder), sample]]
    write_whole(_samples_file(folder), b"\n".join(lines) + b"\n")


def _samples_file(folder: Path) -> Path:
    return Ledger(folder).folder / "restores.jsonl"


# What the log must still hold.


class HistoryGone(CatchwaterError):
    """The log does not reach back to a checkpoint's offsets; replaying would skip records."""

    exit_code = 5


class LogBehind(CatchwaterError):
    """The log ends before a checkpoint's offsets: it is not the log the checkpoint came from."""

    exit_code = 5


class _Gap(NamedTuple):
    """What a checkpoint needs of a partition and the log does not hold, after its subject."""

    error: type[CatchwaterError]
    message: str
    hint: str | None = None


def _gap(name: str, offset: int, tail: PartitionTail | None) -> _Gap | None:
    """Why the log cannot go on from this offset of the partition; None if it can."""
    if tail is None:
        return _Gap(HistoryGone, f"needs {name}, and the log has no partition {name} any more")
    if offset < tail.log_start:
        return _Gap(
            HistoryGone,
            f"needs {name} from offset {offset} on, and the log begins at offset "
            f"{tail.log_start}: {tail.log_start - offset} records are gone",
            "Restore a newer checkpoint, or rebuild from what the log still holds.",
        )
    if offset > tail.high_watermark:
        return _Gap(
            LogBehind,
            f"stands at offset {offset} of {name}, and the log ends at offset "
            f"{tail.high_watermark}",
            "Is this the log that the checkpoint was written from?",
        )
    return None


def check_covered(end: SourceOffset, tails: Mapping[tuple[str, int], PartitionTail]) -> None:
    """Raise `HistoryGone` or `LogBehind` unless the log can go on from these offsets."""
    for topic, partitions in end.needed.items():
        for partition, offset in partitions.items():
            gap = _gap(f"{topic}-{partition}", offset, tails.get((topic, int(partition))))
            if gap is not None:
                message = f"The checkpoint of epoch {end.epoch} {gap.message}."
                raise gap.error(message, hint=gap.hint)


# The files.


def load_contracts(folder: Path) -> list[Contract]:
    """The contracts in a checkpoint folder, oldest first."""
    contracts = Ledger(folder).folder / "contracts"
    found = (
        read_json(contracts / f"{n}.json", Contract) for n in sorted(numbered(contracts, ".json"))
    )
    return [contract for contract in found if contract]


def write_contract(folder: Path, contract: Contract) -> None:
    """Keep a contract beside its checkpoint, durably."""
    path = Ledger(folder).folder / "contracts" / f"{contract.epoch}.json"
    write_whole(path, msgspec.json.format(msgspec.json.encode(contract), indent=1))


def forget_contracts_before(folder: Path, epoch: int) -> None:
    """Drop the contracts of checkpoints that are not retained any more."""
    contracts = Ledger(folder).folder / "contracts"
    for number in list(numbered(contracts, ".json")):
        if number < epoch:
            (contracts / f"{number}.json").unlink(missing_ok=True)


def versions() -> dict[str, str]:
    """Of this product, of Python, and of Spark where it is installed."""
    found = {"catchwater": version("catchwater"), "python": platform.python_version()}
    try:
        return {**found, "pyspark": version("pyspark")}
    except PackageNotFoundError:
        return found
