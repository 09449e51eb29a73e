"""The recovery contract: what a restore from one checkpoint would need, and how long it takes.

Written as JSON beside every checkpoint (`contract.schema.json` says its shape), held against its
budgets when it is written, and compared with what the log holds by `check`. How long a restore
takes is the business of `estimate`.

Pure but for the files of contracts; the log is read by others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from catchwater.config import CatchwaterError
from catchwater.recovery.estimate import Estimate, Pace, RestoreSample, estimate
from catchwater.recovery.ledger import (
    EpochEntry,
    Ledger,
    SinkEpoch,
    SourceOffset,
    numbered,
    read_json,
    write_whole,
)
from catchwater.verdicts import spelled_s

FORMAT = 3
"""3: two timelines, the input's rate and the recovery point, where 2 had a straight line."""


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


class Retention(msgspec.Struct, frozen=True):
    """What the log must keep: from these offsets on, which is about this far back in time."""

    ms: int
    """-1: for ever, as the restore never catches up."""
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
    recovery_point_s: float = 0.0
    """How far back in time the input begins that a restore reads again, at worst."""
    max_replay_s: float | None = None
    """The budget of that."""


@dataclass(frozen=True, slots=True)
class PartitionTail:
    """What the log says of one input partition."""

    log_start: int
    high_watermark: int
    bytes: int
    """Of the records from log start to high watermark."""
    table_from: int | None = None
    """From where on a backfill has in the topic's table what lies before the log start."""

    @property
    def first(self) -> int:
        """The first offset that can be read."""
        return self.log_start if self.table_from is None else min(self.table_from, self.log_start)


Tails = Mapping[tuple[str, int], PartitionTail]


@dataclass(frozen=True, slots=True)
class Terms:
    """What does not change from checkpoint to checkpoint."""

    pipeline: str
    functions: Sequence[FunctionVersion]
    needs_history_ms: int
    max_restore_s: float | None
    versions: Mapping[str, str]
    max_replay_s: float | None = None
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
    kept_ms: Mapping[str, int] = field(default_factory=dict)
    """Topic → `kept_ms` of its settings, of a log without pins that tells them."""


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
    pace: Pace = Pace(),  # noqa: B008  (frozen)
    pinned_by: int | None = None,
) -> Contract:
    """The contract of the checkpoint that this epoch ends at.

    `oldest_clock_ms` is the clock of the oldest checkpoint that is still retained; `pace` is how
    fast input comes and the pipeline works. `pinned_by` is the epoch whose pin holds what this one
    needs, None: its own.
    """
    inputs = [
        _input(topic, int(partition), offset, tails[topic, int(partition)])
        for topic, partitions in sorted(entry.end.needed.items())
        for partition, offset in sorted(partitions.items(), key=lambda item: int(item[0]))
    ]
    records = sum(position.records for position in inputs)
    state_bytes = entry.total("state_bytes")
    restore = estimate(samples, state_bytes=state_bytes, replay_records=records, pace=pace)
    kept_ms = -1
    if restore.high_s is not None:
        kept_ms = now_ms - oldest_clock_ms + round(restore.high_s * 1000)
        kept_ms = max(kept_ms, terms.needs_history_ms)
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
            kept_ms,
            pin_id(terms.pipeline, entry.epoch if pinned_by is None else pinned_by)
            if terms.pinned
            else "",
        ),
        sinks=entry.sinks,
        versions=dict(terms.versions),
        recovery_point_s=_recovery_point_s(records, now_ms - entry.end.clock_ms, pace),
        max_replay_s=terms.max_replay_s,
    )


def _recovery_point_s(records: int, age_ms: int, pace: Pace) -> float:
    """The time in which what lies behind the checkpoint came, and until the next one is done."""
    if not records:
        span_s = 0.0
    elif input_per_s := max(pace.input_per_s, pace.longer_per_s):
        span_s = records / input_per_s
    else:
        span_s = age_ms / 1000
    return round(span_s + pace.interval_s, 2)


def _input(topic: str, partition: int, offset: int, tail: PartitionTail) -> InputPosition:
    """Bytes to the tail are taken in proportion: batches differ less than they are worth asking."""
    held = tail.high_watermark - tail.log_start
    records = max(0, tail.high_watermark - offset)
    size = round(tail.bytes * records / held) if held > 0 else 0
    return InputPosition(
        topic, partition, offset, tail.log_start, tail.high_watermark, records, size
    )


def check(contract: Contract, log: LogState) -> list[Finding]:
    """What of the contract holds now: input, pin, estimate against budget, sinks."""
    findings = [_covered(position, log) for position in contract.inputs]
    findings.append(_pinned(contract, log))
    findings += budgets(contract)
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


def kept_ms(settings: Mapping[str, str]) -> int:
    """How old records of a topic with these settings become before they are deleted; -1: never."""
    if "delete" not in settings.get("cleanup.policy", "delete"):
        return -1
    return int(settings.get("retention.ms", -1))


def short_topics(kept_ms: Mapping[str, int], needed_ms: int) -> list[str]:
    """The topics that are kept for less long than a restore reads back; -1 is for ever."""
    return [t for t, kept in kept_ms.items() if 0 <= kept and not 0 <= needed_ms <= kept]


def _pinned(contract: Contract, log: LogState) -> Finding:
    if not contract.retention.pin:
        return _kept(contract.retention.ms, log)
    pin = _holding(contract, log)
    match log.pins.get(pin):
        case None:
            return Finding("warn", "pin", f"nothing keeps the log: there is no pin {pin}")
        case "lost":
            return Finding("fail", "pin", f"{pin} is lost: the log has deleted what it held")
        case "unreserved":
            over = f"{pin} holds back more than its max_bytes, so the log may delete what it holds"
            return Finding("warn", "pin", over)
    return Finding("pass", "pin", f"{pin} keeps the log from these offsets on")


def _kept(needed_ms: int, log: LogState) -> Finding:
    """What retention promises where there are no pins."""
    if not log.kept_ms:
        told = "nothing keeps the log: it has no pins, and does not tell its retention"
        return Finding("warn", "pin", told)
    back = "without end, as it never catches up" if needed_ms < 0 else spelled_s(needed_ms / 1000)
    if short := short_topics(log.kept_ms, needed_ms):
        kept = ", ".join(f"{topic} for {spelled_s(log.kept_ms[topic] / 1000)}" for topic in short)
        told = f"retention.ms keeps {kept}, and a restore reads back {back}; there are no pins"
        return Finding("warn", "pin", told)
    told = f"retention.ms keeps the log for longer than a restore reads back, {back}"
    return Finding("pass", "pin", f"{told}; there are no pins")


def _holding(contract: Contract, log: LogState) -> str:
    """The contract's pin, or that of a restore point since: any that is not younger holds more."""
    promised = contract.retention.pin
    if promised in log.pins or promised == pin_id(contract.pipeline, contract.epoch):
        return promised
    prefix = pin_id(contract.pipeline, 0)[:-1]
    numbers = (name.removeprefix(prefix) for name in log.pins if name.startswith(prefix))
    older = (int(each) for each in numbers if each.isdigit() and int(each) <= contract.epoch)
    newest = max(older, default=None)
    return promised if newest is None else pin_id(contract.pipeline, newest)


def budgets(contract: Contract) -> list[Finding]:
    """What the contract itself says of its budgets: of time (RTO), and of input (RPO)."""
    return [_in_time(contract), *_near_enough(contract)]


def spelled(restore: Estimate) -> str:
    """An estimate for a person: "2.1 s (1.6 to 2.6)", or never, with what is missing."""
    if restore.seconds is None:
        return (
            f"never: {restore.input_per_s:.0f} records/s come and {restore.capacity_per_s:.0f} "
            f"can be processed, {restore.missing_per_s:.0f} too few"
        )
    high = "never" if restore.high_s is None else f"{restore.high_s:.1f}"
    return f"{restore.seconds:.1f} s ({restore.low_s:.1f} to {high})"


def _in_time(contract: Contract) -> Finding:
    restore, budget_s = contract.restore, contract.max_restore_s
    if budget_s is None:
        verdict: Verdict = "pass" if restore.seconds is not None else "warn"
        return Finding(verdict, "restore", f"{spelled(restore)}; no max_restore is declared")
    verdict = "pass"
    if restore.seconds is None or restore.seconds > budget_s:
        verdict = "fail"
    elif restore.high_s is None or restore.high_s > budget_s:
        verdict = "warn"
    return Finding(verdict, "restore", f"{spelled(restore)} of {budget_s:.0f} s")


def _near_enough(contract: Contract) -> list[Finding]:
    budget_s, point_s = contract.max_replay_s, contract.recovery_point_s
    if budget_s is None:
        return []
    verdict: Verdict = "pass" if point_s <= budget_s else "fail"
    said = f"{point_s:.1f} s of input are read again, of {budget_s:.0f} s at most"
    return [Finding(verdict, "recovery point", said)]


def _sink(contract: Contract, name: str, log: LogState) -> Finding:
    if name not in log.sink_epochs:
        return Finding("fail", name, "the sink has no epoch of this pipeline")
    has = log.sink_epochs[name]
    if has is None:
        return Finding("pass", name, "the sink is written at least once and keeps no marks")
    if has < contract.epoch:
        return Finding("fail", name, f"the sink ends at epoch {has}, before this checkpoint")
    return Finding("pass", name, f"the sink has epoch {contract.epoch} (last: {has})")


# What the log must still hold.


class HistoryGone(CatchwaterError):
    """The log does not reach back to a checkpoint's offsets; replaying would skip records."""

    exit_code = 5


class NoContract(CatchwaterError):
    """The pipeline has no contract, or none of the checkpoint asked for."""


class LogBehind(CatchwaterError):
    """The log ends before a checkpoint's offsets: it is not the log the checkpoint came from."""

    exit_code = 5


_ELSEWHERE = "Name a place that the log holds: earliest, latest, or offsets in between."


class _Gap(NamedTuple):
    """What a checkpoint needs of a partition and the log does not hold, after its subject."""

    error: type[CatchwaterError]
    message: str
    hint: str | None = None


def _gap(name: str, offset: int, tail: PartitionTail | None) -> _Gap | None:
    """Why the log cannot go on from this offset of the partition; None if it can."""
    if tail is None:
        return _Gap(HistoryGone, f"needs {name}, and the log has no partition {name} any more")
    if offset < tail.first:
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
            "Is this the log that the checkpoint was written from? If it was brought back from an "
            "older copy: catchwater savepoint restore FILE NAME, of a savepoint from before.",
        )
    return None


def check_covered(
    end: SourceOffset, tails: Mapping[tuple[str, int], PartitionTail], subject: str = ""
) -> None:
    """Raise `HistoryGone` or `LogBehind` unless the log can go on from these offsets.

    The error names every partition that is in the way, and what of it is missing; `subject` is what
    needs them, a checkpoint unless it is said.
    """
    found = [
        gap
        for topic, partitions in end.needed.items()
        for partition, offset in partitions.items()
        if (gap := _gap(f"{topic}-{partition}", offset, tails.get((topic, int(partition)))))
    ]
    if found:
        named = "; it ".join(gap.message for gap in found)
        message = f"{subject or f'The checkpoint of epoch {end.epoch}'} {named}."
        hint = _ELSEWHERE if subject else found[0].hint
        raise found[0].error(message, hint=hint)


# The files.


def load_contracts(folder: Path) -> list[Contract]:
    """The contracts in a checkpoint folder, oldest first."""
    contracts = Ledger(folder).folder / "contracts"
    found = (
        read_json(contracts / f"{n}.json", Contract) for n in sorted(numbered(contracts, ".json"))
    )
    return [contract for contract in found if contract]


def load_contract(folder: Path, epoch: int | None = None) -> Contract:
    """The newest contract in a checkpoint folder, or an epoch's. Raises `NoContract`."""
    contracts = load_contracts(folder)
    if not contracts:
        raise NoContract(
            "The pipeline has no contract yet; the first is written with its first checkpoint.",
            hint="catchwater pipeline run FILE",
        )
    for each in contracts:
        if each.epoch == (contracts[-1].epoch if epoch is None else epoch):
            return each
    there = ", ".join(str(each.epoch) for each in contracts)
    raise NoContract(f"There is no contract of checkpoint {epoch}; there are {there}.")


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
