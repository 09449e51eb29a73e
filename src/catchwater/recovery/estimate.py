"""When is the pipeline useful again? The estimate of a restore, and what it rests on.

A failure costs two times one after the other. *Infrastructure*: until it is noticed, until the next
process begins, until that has a session and its first epoch begins. *Application*: until the state
is there, until the input has been caught up with. Input goes on meanwhile. So what is to be
replayed is the tail at the failure and all that comes until the end of it is reached:

    down = detection + scheduling + session + state
    replay = (tail + input rate * max(0, down - near)) / (capacity - input rate)

until no more is left than comes in `near`, as behind every ordinary epoch. Where the input comes as
fast as the pipeline can work there is no end: `never`.

The constants are those of restores measured before, else cautious defaults, and an estimate names
what it assumes. A restore is measured while it happens (`pipeline.epochs`): it begins with the
pipeline's process and is over when an epoch ends near the end that the log has by then. It is
measured only where there was something to catch up with; else the time would be that of waiting
for input.

How long a failure went unnoticed is measured by a sign of life: a file that a driver touches all
the time and takes away when it stops as it was asked.

Pure but for the files of samples and of the sign of life: time comes as an argument, and the log is
read by others.
"""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, get_args

import msgspec

from catchwater.recovery.ledger import (
    EpochEntry,
    Ledger,
    LedgerDamaged,
    read_lines,
    write_whole,
)

DEFAULT_DETECTION_S = 0.5
DEFAULT_SCHEDULING_S = 1.5
DEFAULT_STARTUP_S = 20.0
DEFAULT_STATE_BYTES_PER_S = 20e6
DEFAULT_REPLAY_RECORDS_PER_S = 40e3
UNMEASURED_SPREAD = 0.6
"""Half-width of the error bar, as a share of the estimate, before any restore was measured."""
LEAST_SPREAD = 0.25
LAST_SAMPLES = 10
LAST_STARTS = 5
"""Older restores say little of today's machine, and less of how long it takes to start something
than of how fast it then is."""

LEAST_NEAR_S = 2.0
_LEAST_GAIN_PER_S = 1e-6
"""A pipeline that gains less on its input, a record in twelve days, never catches up."""
_LEAST_S = 0.05
"""Shorter spans are noise of the clock, not a rate."""
_LONG_S = 3.0
"""Of a replay that was shorter, half may have been what an epoch takes beside its records."""
_LEAST_RECORDS = 1_000
"""Fewer take as long as epochs take, and say nothing of a rate."""
_LARGE = 3
"""A first epoch that took so many times as long as a small one was a large one."""
_FIRST_S = 1.0
"""What a session's first epoch costs beside its records, where no small one was measured: of few
records, or so short that they cannot have taken most of it."""

Tail = Mapping[tuple[str, int], int]
"""Partition → where the log ends."""
Basis = Literal["restores", "epochs", "assumed"]
Part = Literal["detection", "scheduling", "session", "state", "capacity"]


class Pace(msgspec.Struct, frozen=True):
    """How fast input comes and the pipeline works, lately; records a second."""

    input_per_s: float = 0.0
    """Of the last minute."""
    busy_per_s: float = 0.0
    """While an epoch was under way; 0: not measured. A lower bound of what it can do."""
    saturated: bool = False
    """It worked all the time and fell behind: then `busy_per_s` is all that it can do."""
    kept_up: bool = False
    """It read what came: then it can do at least that."""
    interval_s: float = 0.0
    """From one checkpoint to the next."""
    near_s: float = LEAST_NEAR_S
    """What comes in so long may be left when it has caught up (`near_s`)."""
    work_per_s: float = 0.0
    """While functions and sinks were at work; 0: not measured. What else an epoch takes hardly
    depends on its records, so this is what a larger one would do."""
    longer_per_s: float = 0.0
    """Of the last five minutes. A burst that is over may come again: so it is in the error bar."""


class Infrastructure(msgspec.Struct, frozen=True):
    """Seconds in which no record is looked at."""

    detection_s: float
    scheduling_s: float
    """From the failure's detection to the start of the next process."""
    session_s: float
    """From there to the first epoch, with what a first epoch costs beside its records."""

    @property
    def seconds(self) -> float:
        return self.detection_s + self.scheduling_s + self.session_s


class Application(msgspec.Struct, frozen=True):
    """Seconds that state and input take. None: the input is never caught up with."""

    state_s: float
    replay_s: float | None
    replay_records: int | None
    """The tail at the failure and what comes until the end is reached."""

    @property
    def seconds(self) -> float | None:
        return None if self.replay_s is None else self.state_s + self.replay_s


class Estimate(msgspec.Struct, frozen=True):
    """How long a restore takes until the pipeline has caught up, seconds, with its error bar.

    None where it never does: input comes faster than it is processed.
    """

    seconds: float | None
    low_s: float | None
    high_s: float | None
    samples: int
    """Measured restores it rests on; 0: defaults."""
    infrastructure: Infrastructure | None = None
    """None in contracts of format 2."""
    application: Application | None = None
    input_per_s: float = 0.0
    capacity_per_s: float = 0.0
    capacity: Basis = "assumed"
    """What the capacity was measured by."""
    missing_per_s: float = 0.0
    """Headroom that is missing: so many records a second more come than can be processed."""
    assumed: list[Part] = []
    """What was not measured on this pipeline yet, in the order of a restore."""
    with_local_s: float | None = None
    """`seconds` where this machine's local state is intact, as after the loss of only a process:
    then no state is read. None: never, or not known."""

    @property
    def infrastructure_s(self) -> float | None:
        """Without a record being looked at; None: not known."""
        return None if self.infrastructure is None else round(self.infrastructure.seconds, 2)

    @property
    def application_s(self) -> float | None:
        """State and replay; None: never done, or not known."""
        seconds = None if self.application is None else self.application.seconds
        return None if seconds is None else round(seconds, 2)

    @property
    def pace(self) -> Pace:
        """What it went by, for an estimate of another checkpoint."""
        busy_per_s = self.capacity_per_s if self.capacity == "epochs" else 0.0
        return Pace(
            self.input_per_s,
            busy_per_s=busy_per_s,
            saturated=bool(busy_per_s and self.missing_per_s),
            work_per_s=busy_per_s,
        )


class RestoreSample(msgspec.Struct, frozen=True):
    """One restore as it was measured; a line of `restores.jsonl`."""

    epoch: int
    startup_s: float
    """From the start of the process to its first epoch, without rebuilding state."""
    state_bytes: int
    state_s: float
    replay_records: int
    replay_s: float
    """From the first epoch's end until the end that the log had by then was reached."""
    first_records: int = 0
    first_s: float = 0.0
    """What the first epoch took beside state. Where 0, `startup_s` has it."""
    scheduling_s: float | None = None
    """From the failure's detection to the start of the process; None: unknown."""
    detection_s: float | None = None
    """From the last sign of life to the failure's detection; None: unknown. 0 where
    no supervisor noted it: then `scheduling_s` begins at the last sign of life."""
    estimated_s: float | None = None
    """What the newest contract before the failure had foretold of `whole_s`. None: never, or it
    was no failure, or there was no contract."""
    ended_ms: int = 0
    """When it was over, since 1970; 0: an older version measured it."""

    @property
    def seconds(self) -> float:
        """From the start of the process on."""
        return self.startup_s + self.state_s + self.first_s + self.replay_s

    @property
    def whole_s(self) -> float:
        """From the failure on, as far as that is known."""
        return (self.detection_s or 0.0) + (self.scheduling_s or 0.0) + self.seconds


@dataclass(frozen=True, slots=True)
class _Constants:
    """What restores are made of, by those that were measured."""

    detection_s: float
    scheduling_s: float
    session_s: float
    state_bytes_per_s: float
    records_per_s: float | None
    """None: no restore was long enough to tell."""
    least_per_s: float
    """What short ones did a second, at best: with all that an epoch takes beside its records."""
    assumed: frozenset[Part]

    def down_s(self, state_bytes: int) -> float:
        before_s = self.detection_s + self.scheduling_s + self.session_s
        return before_s + state_bytes / self.state_bytes_per_s


def estimate(
    samples: Sequence[RestoreSample],
    *,
    state_bytes: int,
    replay_records: int,
    pace: Pace = Pace(),  # noqa: B008  (frozen)
) -> Estimate:
    """Seconds from a failure now until caught up, by the last measured restores and the pace.

    `replay_records` is the tail as it is now. A failure comes half a checkpoint later, on average,
    and at worst a whole one.
    """
    recent = samples[-LAST_SAMPLES:]
    constants = _constants(recent)
    capacity, basis = _capacity(constants, pace)
    spread = _spread(recent, constants)
    arriving = pace.input_per_s

    def caught_up_s(
        tail: float, slower: float, state_bytes: int = state_bytes, arriving: float = arriving
    ) -> float | None:
        """Where everything takes `slower` times as long."""
        left, down_s = capacity / slower - arriving, constants.down_s(state_bytes)
        if left < _LEAST_GAIN_PER_S:
            return None
        # What was there at the failure is read whole, however long the epochs before it took.
        behind = tail + arriving * max(0.0, down_s * slower - pace.near_s)
        return down_s * slower + behind / left

    tail = replay_records + arriving * pace.interval_s / 2
    seconds = caught_up_s(tail, 1.0)
    low_s = caught_up_s(replay_records, max(1 - spread, 1e-9))
    ends_s = [
        caught_up_s(replay_records + rate * pace.interval_s, 1 + spread, arriving=rate)
        for rate in (arriving, max(arriving, pace.longer_per_s))
    ]
    high_s = None if None in ends_s else max(each for each in ends_s if each is not None)
    replay_s = None if seconds is None else seconds - constants.down_s(state_bytes)
    return Estimate(
        seconds=_rounded(seconds),
        low_s=_rounded(None if seconds is None else low_s),
        high_s=_rounded(high_s),
        samples=len(recent),
        infrastructure=Infrastructure(
            round(constants.detection_s, 2),
            round(constants.scheduling_s, 2),
            round(constants.session_s, 2),
        ),
        application=Application(
            round(state_bytes / constants.state_bytes_per_s, 2),
            _rounded(replay_s),
            None if replay_s is None else round(capacity * replay_s),
        ),
        input_per_s=round(arriving, 1),
        capacity_per_s=round(capacity, 1),
        capacity=basis,
        missing_per_s=round(max(0.0, arriving - capacity), 1),
        assumed=_assumed(constants, basis, state_bytes),
        with_local_s=_rounded(caught_up_s(tail, 1.0, 0)),
    )


def _assumed(constants: _Constants, capacity: Basis, state_bytes: int) -> list[Part]:
    """What the estimate rests on that nobody measured; without state its rate does not matter."""
    return [
        part
        for part in get_args(Part)
        if (capacity == "assumed" if part == "capacity" else part in constants.assumed)
        and (state_bytes or part != "state")
    ]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _capacity(constants: _Constants, pace: Pace) -> tuple[float, Basis]:
    """Records a second that can be processed, and how that is known."""
    if pace.saturated:
        return pace.busy_per_s, "epochs"
    known = constants.records_per_s
    kept_up_with = max(pace.input_per_s, pace.longer_per_s) if pace.kept_up else 0.0
    least = max(pace.busy_per_s, kept_up_with)
    if known is not None and known >= least:
        return known, "restores"
    least = max(least, constants.least_per_s)
    if constants.least_per_s >= max(least, DEFAULT_REPLAY_RECORDS_PER_S):
        return least, "restores"
    # A pipeline that keeps up with more than restores did refutes them, and says no more than the
    # least: one of many small epochs is at work all the time with what comes, whatever it could do.
    # How slow its functions and sinks are shows then, too.
    if pace.busy_per_s > DEFAULT_REPLAY_RECORDS_PER_S:
        return pace.busy_per_s, "epochs"
    if least <= pace.work_per_s < DEFAULT_REPLAY_RECORDS_PER_S and pace.work_per_s:
        return pace.work_per_s, "epochs"
    return DEFAULT_REPLAY_RECORDS_PER_S, "assumed"


def _constants(samples: Sequence[RestoreSample]) -> _Constants:
    noticed = [s.detection_s for s in samples if s.detection_s is not None][-LAST_STARTS:]
    waited = [s.scheduling_s for s in samples if s.scheduling_s is not None][-LAST_STARTS:]
    small = [
        each.first_s
        for each in samples
        if each.first_records < _LEAST_RECORDS or each.first_s < _LARGE * _FIRST_S
    ]
    first_s = median(small[-LAST_STARTS:]) if small else _FIRST_S if samples else 0.0
    starts = [each.startup_s for each in samples[-LAST_STARTS:]]
    startup_s = median(starts) if starts else DEFAULT_STARTUP_S
    replayed = [_replayed(each, first_s) for each in samples]
    short = [records / s for records, s in replayed if records and _LEAST_S < s < _LONG_S]
    state = _rate([(each.state_bytes, each.state_s) for each in samples])
    measured = {"detection": noticed, "scheduling": waited, "session": samples, "state": state}
    return _Constants(
        detection_s=median(noticed) if noticed else DEFAULT_DETECTION_S,
        scheduling_s=median(waited) if waited else DEFAULT_SCHEDULING_S,
        session_s=startup_s + first_s,
        state_bytes_per_s=state or DEFAULT_STATE_BYTES_PER_S,
        records_per_s=_rate([(records, s) for records, s in replayed if s >= _LONG_S]),
        least_per_s=max(short, default=0.0),
        assumed=frozenset(part for part in get_args(Part) if not measured.get(part, True)),
    )


def _replayed(sample: RestoreSample, first_s: float) -> tuple[int, float]:
    """Records and seconds that say how fast a restore was; none where they say nothing.

    A large first epoch is part of the replay, a small one part of the start; of one that took
    hardly longer than a small one nobody can say what its records took.
    """
    records, seconds = 0, 0.0
    if sample.replay_records >= _LEAST_RECORDS:
        records, seconds = sample.replay_records, sample.replay_s
    if sample.first_records >= _LEAST_RECORDS and sample.first_s >= _LARGE * first_s:
        records, seconds = records + sample.first_records, seconds + sample.first_s - first_s
    return records, seconds


def _rate(measured: Sequence[tuple[int, float]]) -> float | None:
    """Units a second, by those that were long enough to be a measurement; None: there is none.

    The median, each counted as often as it has units: in small ones it is other things that take
    the time, and many of them must not outweigh a large one.
    """
    rates = sorted(
        (units / seconds, units) for units, seconds in measured if units and seconds > _LEAST_S
    )
    half, passed = sum(units for _, units in rates) / 2, 0
    for rate, units in rates:
        passed += units
        if passed >= half:
            return rate
    return None


def _spread(samples: Sequence[RestoreSample], constants: _Constants) -> float:
    """Half-width of the error bar, as a share: the worst miss of what was measured.

    A few that agree say little of the next, so it narrows with the root of their number.
    """
    narrowed = max(LEAST_SPREAD, UNMEASURED_SPREAD / math.sqrt(1 + len(samples)))
    rate = constants.records_per_s or DEFAULT_REPLAY_RECORDS_PER_S

    def foretold_s(sample: RestoreSample) -> float:
        records = sample.first_records + sample.replay_records
        state_s = sample.state_bytes / constants.state_bytes_per_s
        return constants.session_s + state_s + records / rate

    misses = [abs(foretold_s(each) - each.seconds) / each.seconds for each in samples]
    return max([narrowed, *misses])


# Measuring: the pace of a pipeline that runs, and a restore.


def offsets_read(entry: EpochEntry) -> int:
    """How many offsets of its input an epoch read, in all partitions."""
    start = entry.start.offsets
    return sum(
        max(0, end - start.get(topic, {}).get(partition, end))
        for topic, partitions in entry.end.offsets.items()
        for partition, end in partitions.items()
    )


def near_s(entries: Sequence[EpochEntry]) -> float:
    """How near the log's end is near, seconds: twice what an epoch took before the failure."""
    took = [entry.finished_ms - entry.end.clock_ms for entry in entries]
    return near_of(median(took) if took else 0.0)


def near_of(usual_ms: float) -> float:
    """The same, of what an epoch usually takes, ms."""
    return max(LEAST_NEAR_S, 2 * usual_ms / 1000)


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


# A sign of life: when did the last driver die?

_LONGEST_WAIT_MS = 120_000
"""A start that follows a failure so much later does not follow from it."""


def show_life(folder: Path) -> None:
    """Let the next start know that a driver is alive now; no error where it cannot."""
    path = _life_file(folder)
    with suppress(OSError):
        try:
            os.utime(path)
        except FileNotFoundError:
            path.touch()


def rest(folder: Path) -> None:
    """The driver has stopped as it was asked: what comes after is no failure."""
    with suppress(OSError):
        _life_file(folder).unlink(missing_ok=True)


def last_alive_ms(folder: Path) -> int | None:
    """When a driver was last alive that did not stop as it was asked; None: there is none."""
    with suppress(OSError):
        return _life_file(folder).stat().st_mtime_ns // 1_000_000
    return None


def down_s(
    alive_ms: int | None, noticed_ms: int | None, began_ms: int
) -> tuple[float | None, float | None]:
    """Seconds until a failure was noticed, and from there until the process began.

    `alive_ms` is the last sign of life, `noticed_ms` when a supervisor last saw a driver fail. None
    where that is not known; where no supervisor has noticed, all is in the second.
    """
    if noticed_ms is not None and not 0 <= began_ms - noticed_ms <= _LONGEST_WAIT_MS:
        noticed_ms = None
    if alive_ms is not None and not 0 <= began_ms - alive_ms <= _LONGEST_WAIT_MS:
        alive_ms = None
    if noticed_ms is None:
        return (None, None) if alive_ms is None else (0.0, (began_ms - alive_ms) / 1000)
    waited_s = (began_ms - noticed_ms) / 1000
    return (None if alive_ms is None else max(0, noticed_ms - alive_ms) / 1000), waited_s


def _life_file(folder: Path) -> Path:
    return Ledger(folder).folder / "alive"
