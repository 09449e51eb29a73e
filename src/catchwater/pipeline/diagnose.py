"""What holds a pipeline back, from what was measured: the answer of `catchwater diagnose`.

Each rule looks for one cause and answers with a `Finding`, or with nothing: what was measured, why
it matters, and what helps. What could not be measured finds nothing; whoever asked says so. A
finding names what to tune first: the *processor* (the pipeline, its function, its machine), the
*log* (brokers, topics, groups), or the *architecture* (what neither setting mends).

Which part of an epoch takes longest is a finding only where the pipeline is *pressed*: behind its
promise, or with less than a fifth of its capacity to spare. A part may well be the longest of an
epoch that is fast.

Pure: everything comes in `Measured`, and nothing is opened.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

import msgspec

from catchwater.recovery.ledger import CallEpoch, EpochEntry, parts_ms
from catchwater.verdicts import spelled_s

Change = Literal["processor", "log", "architecture"]

LEAST_EVENTS = 1_000
"""Of fewer, shares say nothing."""
LEAST_EPOCHS = 3
HOT_KEY = 0.2
STUCK_S, STUCK_TIMES = 10.0, 3.0
"""From so long on an epoch is stuck, and so many times as long as the one before."""
SPARE = 0.8
"""A pipeline whose input is more than such a share of its capacity is pressed."""
HALF, MUCH = 0.5, 0.4
SLOW_COMMIT_MS = 500.0
SLOW_CALL_MS = 500.0
FAILED_CALLS = 0.05
SLOW_WAL_S = 0.25
FAILED_REQUESTS = 0.02
LEAST_WRITES = 50
SHORT_EPOCH_MS = 1_000.0
READS_AN_EVENT = 0.02
"""Pages from disk for each event; a state in memory needs next to none."""
REBUILT = 0.3
"""Share of epochs that had to build state anew: after a start it is one."""
COLLECTING = 0.1
GROUP_LAG_S = 60.0


class Finding(msgspec.Struct, frozen=True):
    """One cause."""

    cause: str
    change: Change
    """What to tune first."""
    subject: str
    """Whose: a function, a sink, a topic, a group."""
    measured: str
    why: str
    next: str
    """The command or the setting that helps."""


@dataclass(frozen=True)
class GroupLoad:
    """A consumer group that has members."""

    name: str
    members: int
    partitions: int
    lag_records: int
    lag_s: float | None


@dataclass(frozen=True)
class BrokerLoad:
    """What a broker has measured since it was started."""

    wal_writes: int = 0
    wal_p99_s: float | None = None
    """An upper bound: of the bucket that it lies in."""
    store_requests: int = 0
    store_failed: int = 0
    """Those that failed or had to be repeated."""


@dataclass(frozen=True)
class Measured:
    """What was asked; None: it could not be."""

    file: str
    entries: Sequence[EpochEntry]
    """Of the last epochs, oldest first."""
    functions: Sequence[str]
    tasks: int
    commit_ms: Mapping[int, float] = field(default_factory=dict)
    """Epoch → how long the ledger's entry and Spark's commit took."""
    trigger_s: float | None = None
    """None: epochs follow each other at once."""
    most_records: int | None = None
    """maxOffsetsPerTrigger; None: an epoch has no bound."""
    stale: bool = False
    """Whether the pipeline is behind its promise, or close to it."""
    lag_s: float | None = None
    under_way_s: float | None = None
    """For how long an epoch has been planned and not committed, where a process works on it."""
    epoch_s: float | None = None
    """How long the last epoch took."""
    input_per_s: float | None = None
    capacity_per_s: float | None = None
    missing_per_s: float = 0.0
    ours: bool = True
    """Whether the log is one of ours, where no broker leads a partition."""
    broker: BrokerLoad | None = None
    groups: Sequence[GroupLoad] = ()
    short_topics: Sequence[str] = ()
    """Inputs that are kept for less long than a restore reads back, and not pinned."""
    needed_s: float | None = None
    """How far back a restore reads."""

    @property
    def pressed(self) -> bool:
        """Whether it is behind, or soon will be."""
        if self.stale or self.missing_per_s > 0:
            return True
        if not self.capacity_per_s or self.input_per_s is None:
            return False
        return self.input_per_s > SPARE * self.capacity_per_s


PARTS = ("source", "decode", "handlers", "waiting", "calls", "state", "sinks", "commit")


def split_ms(measured: Measured) -> dict[str, float]:
    """Where an epoch's time goes on average, ms, by `PARTS`; empty if that was not measured.

    `source`: reading and shuffling; `decode`: making events of bytes; `handlers`: the processor's
    part of the functions beside that; `waiting`: the rest of their time; `state`: loading it and
    making its changes durable. What the functions take is as long as the slowest shard of each, and
    divided as that is which each shard's own time goes to: not what it waits for another.
    """
    sums = dict.fromkeys(PARTS, 0.0)
    epochs = [entry for entry in measured.entries if entry.run_ms and entry.total("events")]
    for entry in epochs:
        parts = parts_ms(entry)
        sums["source"] += parts["source"]
        sums["sinks"] += parts["sinks"]
        sums["commit"] += measured.commit_ms.get(entry.epoch, 0.0)
        handle, calls, state = map(entry.total, ("handle_ms", "calls_ms", "state_ms"))
        whole = handle + calls + state
        scale = parts["function"] / whole if whole else 0.0
        cpu = min(entry.total("cpu_ms"), handle)
        decode = min(entry.total("decode_ms"), cpu)
        sums["decode"] += scale * decode
        sums["handlers"] += scale * (cpu - decode)
        sums["waiting"] += scale * max(0.0, handle - cpu)
        sums["calls"] += scale * calls
        sums["state"] += scale * state
    if not epochs:
        return {}
    return {part: round(total / len(epochs), 1) for part, total in sums.items()}


def diagnose(measured: Measured) -> list[Finding]:
    """All causes that were found, in the order of `RULES`."""
    return [found for rule in RULES for found in rule(measured)]


# What does not move.


def _stuck_epoch(m: Measured) -> Iterator[Finding]:
    """An epoch does not end: something in it hangs, or is very slow."""
    usual_s = m.epoch_s or 0.0
    if m.under_way_s is None or m.under_way_s < max(STUCK_S, STUCK_TIMES * usual_s):
        return
    yield Finding(
        "stuck-epoch", "processor", "pipeline",
        f"the epoch under way has taken {spelled_s(m.under_way_s)} so far; the one before took "
        f"{spelled_s(usual_s)}",
        "Nothing is committed until it ends, however much of it is done.",
        "A handler that hangs is ended after its handler_timeout and its record named; all else (a "
        'sink, a store, the JVM) by epoch_timeout = "5m" in [pipeline]. To end it now: catchwater '
        f"pipeline stop {m.file} --yes, then catchwater pipeline run {m.file}; the epoch runs "
        "again and no row is written twice.",
    )  # fmt: skip


# What there is too much of in one place.


def _hot_key(m: Measured) -> Iterator[Finding]:
    """One key is one shard's, however many tasks there are."""
    events: Counter[int] = Counter()
    hot: Counter[tuple[int, str]] = Counter()
    for entry in m.entries:
        for shard in entry.shards:
            events[shard.stage] += shard.events
            if shard.hot_events:
                hot[shard.stage, shard.hot_key] += shard.hot_events
    for (stage, key), count in hot.most_common():
        if events[stage] >= LEAST_EVENTS and count >= HOT_KEY * events[stage]:
            yield Finding(
                "hot-key", "architecture", _function(m, stage),
                f"key {key!r} has {count} of the last {events[stage]} events "
                f"({count / events[stage]:.0%})",
                "All events of a key are handled one after the other by one shard: more tasks do "
                "not help.",
                "If it stands for no real thing (empty, unknown), leave it out before the "
                "function. Else make the key finer (key = (…, …)), or let a function before it sum "
                f"up by a finer key. Its state: catchwater state get {m.file} {shlex.quote(key)}",
            )  # fmt: skip


def records_read(entries: Sequence[EpochEntry]) -> dict[str, dict[str, int]]:
    """Topic → partition → records that these epochs have read."""
    if not entries:
        return {}
    begin, end = entries[0].start.offsets, entries[-1].end.offsets
    return {
        topic: {
            partition: max(0, offset - begin.get(topic, {}).get(partition, offset))
            for partition, offset in partitions.items()
        }
        for topic, partitions in end.items()
    }


def _hot_partition(m: Measured) -> Iterator[Finding]:
    """Most records lie in one partition of several."""
    for topic, partitions in sorted(records_read(m.entries).items()):
        total, count = sum(partitions.values()), len(partitions)
        if count < 2 or total < LEAST_EVENTS:
            continue
        hottest, records = max(partitions.items(), key=lambda each: each[1])
        if records < max(HALF, min(SPARE, 2 / count)) * total:
            continue
        carried = (
            "No broker leads a partition here, so none is loaded more than the others and there is "
            "nothing to move; but one task of the source and one member of a group read it"
            if m.ours
            else "Its leader takes all of that, and one task of the source and one member of a "
            "group read it"
        )
        hot = [finding.measured for finding in _hot_key(m)]
        mend = (
            "It comes of a hot key, which no partition mends: see hot-key."
            if hot
            else f"Give producers of {topic} a key with more values, or none (then their "
            "partitioner spreads records); more partitions alone do not part what has one key."
        )
        yield Finding(
            "hot-partition", "log", f"{topic}-{hottest}",
            f"{records} of the last {total} records ({records / total:.0%}) of {count} partitions",
            f"{carried}, while the rest waits.", mend,
        )  # fmt: skip


# Where the time goes.


def _share(m: Measured, part: str) -> tuple[float, float, float]:
    """A part's share of an epoch, its ms, and the whole epoch's."""
    parts = split_ms(m)
    whole = sum(parts.values())
    if len(m.entries) < LEAST_EPOCHS or not whole:
        return 0.0, 0.0, whole
    return parts[part] / whole, parts[part], whole


def _slow_function(m: Measured) -> Iterator[Finding]:
    """The processor is busy in handlers."""
    share, spent_ms, whole_ms = _share(m, "handlers")
    if not (m.pressed and share >= HALF):
        return
    name, cpu_ms = max(_by_function(m, "cpu_ms"), key=lambda each: each[1])
    yield Finding(
        "slow-function", "processor", name,
        f"handlers use the processor for {spent_ms:.0f} of an epoch's {whole_ms:.0f} ms; {name} "
        f"{1000 * cpu_ms:.0f} µs an event, with {m.tasks} tasks",
        "Nothing else would make the pipeline faster than its handlers are.",
        "Profile the handler on its harness (python -m cProfile -m pytest). Then tasks = "
        f"{2 * m.tasks} in [pipeline], if the machine has the cores; shards bound what is at once.",
    )  # fmt: skip


def _slow_decode(m: Measured) -> Iterator[Finding]:
    """Making events of bytes takes longer than handling them."""
    share, spent_ms, whole_ms = _share(m, "decode")
    if m.pressed and share >= MUCH:
        name, ms = max(_by_function(m, "decode_ms"), key=lambda each: each[1])
        yield Finding(
            "slow-decode", "processor", name,
            f"decoding takes {spent_ms:.0f} of an epoch's {whole_ms:.0f} ms, {1000 * ms:.0f} µs an "
            "event",
            "Every field of the event's class is made for each event, used or not.",
            "Leave fields out of the event's class that the function does not use; a dataclass or "
            "msgspec.Struct instead of a pydantic model; events that are smaller.",
        )  # fmt: skip


def _waiting_function(m: Measured) -> Iterator[Finding]:
    """Handlers take long and the processor is idle meanwhile."""
    share, spent_ms, whole_ms = _share(m, "waiting")
    if m.pressed and share >= HALF and not [*_state_memory(m)]:
        spent, used = _by_function(m, "handle_ms"), _by_function(m, "cpu_ms")
        waits = [(each, ms - cpu) for (each, ms), (_, cpu) in zip(spent, used, strict=True)]
        name, _ = max(waits, key=lambda each: each[1])
        yield Finding(
            "waiting-function", "processor", name,
            f"handlers wait for {spent_ms:.0f} of an epoch's {whole_ms:.0f} ms, and the processor "
            "does not work for them",
            "A handler that asks something outside, or sleeps, holds up all events behind it; or "
            "the machine has fewer free cores than tasks.",
            "Declare what it asks as a call (docs/functions.md#calls-to-external-systems): "
            "questions of an epoch are then asked side by side, with timeout and breaker.",
        )  # fmt: skip


def _slow_call(m: Measured) -> Iterator[Finding]:
    """An endpoint that was declared is slow, or fails."""
    share, spent_ms, whole_ms = _share(m, "calls")
    for (stage, name), found in sorted(_calls(m).items()):
        questions = sum(each.questions for each in found)
        attempts = sum(each.attempts for each in found)
        failed = sum(each.failed_attempts for each in found)
        p99_ms = max((each.p99_ms for each in found), default=0)
        is_open = any(each.breaker != "closed" for each in found)
        fails = attempts and failed / attempts >= FAILED_CALLS
        slow = p99_ms >= SLOW_CALL_MS and share >= MUCH
        if not (slow or fails or is_open):
            continue
        breaker = ", its breaker is open" if is_open else ""
        yield Finding(
            "slow-call", "processor" if slow and not fails else "architecture",
            f"{_function(m, stage)}, call {name}",
            f"{questions} questions, p99 {p99_ms} ms, {failed} of {attempts} attempts failed"
            f"{breaker}; calls take {spent_ms:.0f} of an epoch's {whole_ms:.0f} ms",
            "An epoch ends only when all its questions are answered or given up.",
            f"[call.{name}] in the file: more concurrency, a shorter timeout, a breaker; or a "
            "table of the answers (tables = …) instead of a call for each event.",
        )  # fmt: skip


def _slow_sink(m: Measured) -> Iterator[Finding]:
    """Commits of sinks take much of an epoch."""
    share, spent_ms, whole_ms = _share(m, "sinks")
    if share < MUCH or spent_ms < SLOW_COMMIT_MS:
        return
    sums: dict[str, float] = {}
    for entry in m.entries:
        for name, took_ms in entry.sink_ms.items():
            sums[name] = sums.get(name, 0.0) + took_ms
    name, total_ms = max(sums.items(), key=lambda each: each[1])
    each_ms = total_ms / len(m.entries)
    yield Finding(
        "slow-sink", "processor", name,
        f"a commit takes {each_ms:.0f} ms of an epoch's {whole_ms:.0f} ms "
        f"(all sinks {spent_ms:.0f} ms)",
        "Sinks are committed one after the other behind the functions, and the next epoch waits.",
        'Fewer and larger commits: a longer trigger, such as trigger = "10s" in [pipeline], and '
        "a larger maxOffsetsPerTrigger. Then the target: its indexes, its locks, its distance.",
    )  # fmt: skip


def _above_capacity(m: Measured) -> Iterator[Finding]:
    """More comes than can be done."""
    if m.input_per_s is None or not m.capacity_per_s:
        return
    if m.missing_per_s <= 0 and m.input_per_s < m.capacity_per_s:
        return
    parts = split_ms(m)
    longest = max(parts, key=lambda part: parts[part]) if parts else "unknown"
    missing = max(m.missing_per_s, m.input_per_s - m.capacity_per_s)
    lag = "" if m.lag_s is None else f", and is {m.lag_s:.0f} s behind"
    yield Finding(
        "input-above-capacity", "architecture", "pipeline",
        f"{m.input_per_s:.0f} records a second come, {m.capacity_per_s:.0f} can be processed, "
        f"{missing:.0f} are missing{lag}",
        "The lag grows without end, and after a failure a restore never catches up.",
        f"Most of an epoch is {longest}: see what else is found. Then more tasks ({m.tasks} now) "
        f"on more cores; the number of shards changes by catchwater pipeline rebuild {m.file}",
    )  # fmt: skip


def _small_epochs(m: Measured) -> Iterator[Finding]:
    """What every epoch costs is paid too often."""
    epochs = [entry for entry in m.entries if entry.run_ms and entry.total("events")]
    parts = split_ms(m)
    if len(epochs) < LEAST_EPOCHS:
        return
    took_ms, events = sum(parts.values()), median(_events(entry) for entry in epochs)
    if m.trigger_s is not None and took_ms > 1000 * m.trigger_s:
        yield Finding(
            "short-trigger", "processor", "pipeline",
            f"an epoch takes {took_ms / 1000:.1f} s, and one is to begin every {m.trigger_s:g} s",
            "Epochs begin late, each with more to do than was meant, until something is stuck.",
            f'A longer trigger in [pipeline], such as trigger = "{2 * took_ms / 1000:.0f}s".',
        )  # fmt: skip
    if m.pressed and m.most_records and took_ms < SHORT_EPOCH_MS:
        if events >= SPARE * m.most_records:
            yield Finding(
                "small-batches", "processor", "pipeline",
                f"epochs are cut at maxOffsetsPerTrigger = {m.most_records} and take only "
                f"{took_ms:.0f} ms",
                "Planning and committing cost the same for one record and for a hundred thousand.",
                f"maxOffsetsPerTrigger = {10 * m.most_records} in [source].",
            )  # fmt: skip


# State, memory and the JVM.


def _state_memory(m: Measured) -> Iterator[Finding]:
    """Handlers wait for pages of state that memory has no room for."""
    reads = sum(entry.total("disk_reads") for entry in m.entries)
    events = sum(entry.total("events") for entry in m.entries)
    if len(m.entries) < LEAST_EPOCHS or events < LEAST_EVENTS or reads < READS_AN_EVENT * events:
        return
    state_mb = m.entries[-1].total("state_bytes") / 1e6
    yield Finding(
        "state-memory", "processor", "state",
        f"{reads} pages were read from disk for the last {events} events; the state has "
        f"{state_mb:.0f} MB",
        "State lies in files that memory caches: without room in it each key costs a read of the "
        "disk.",
        "More memory, or fewer pipelines on the machine; a shorter state_ttl; [pipeline] local on "
        "a faster disk.",
    )  # fmt: skip


def _rebuilt_state(m: Measured) -> Iterator[Finding]:
    """Copies of shards on this machine do not last from epoch to epoch."""
    rebuilt = [entry for entry in m.entries if entry.total("rebuilt_bytes")]
    if len(rebuilt) < LEAST_EPOCHS or len(rebuilt) < REBUILT * len(m.entries):
        return
    took_s = max(shard.restore_s for entry in rebuilt for shard in entry.shards)
    yield Finding(
        "state-rebuilt", "processor", "state",
        f"shards were built anew in {len(rebuilt)} of {len(m.entries)} epochs, up to "
        f"{took_s:.1f} s each",
        "Epochs wait for state that was on this machine before.",
        "[pipeline] local in a folder that nobody cleans, on a disk with room; on a cluster, "
        "executors that last.",
    )  # fmt: skip


def _jvm(m: Measured) -> Iterator[Finding]:
    """Spark's JVM stands still to collect garbage."""
    ran_ms = sum(entry.run_ms for entry in m.entries)
    paused_ms = sum(entry.gc_ms for entry in m.entries)
    if len(m.entries) < LEAST_EPOCHS or not ran_ms or paused_ms < COLLECTING * ran_ms:
        return
    yield Finding(
        "jvm-memory", "processor", "pipeline",
        f"Spark's JVM collects garbage for {paused_ms / ran_ms:.0%} of the time of epochs",
        "Its heap is too small for the batches that pass through it; it may end by lack of memory.",
        '"spark.driver.memory" = "2g" in [spark] (1g unless it is said), or a smaller '
        "maxOffsetsPerTrigger.",
    )  # fmt: skip


# The log.


def _slow_wal(m: Measured) -> Iterator[Finding]:
    """Producers wait for the write-ahead log, or the object store fails."""
    if m.broker is None:
        return
    seen = m.broker
    if seen.wal_writes >= LEAST_WRITES and (seen.wal_p99_s or 0.0) > SLOW_WAL_S:
        yield Finding(
            "slow-wal", "log", "write-ahead log",
            f"p99 of {seen.wal_writes} writes lies above {SLOW_WAL_S * 1000:.0f} ms",
            "Nothing is acknowledged before it is durable: producers and sinks wait for that.",
            "A disk of its own for log.dirs, one that keeps its word fast (an NVMe with power-loss "
            "protection); with catchwater.wal = object a shorter catchwater.wal.linger.ms.",
        )  # fmt: skip
    if seen.store_requests >= LEAST_WRITES:
        share = seen.store_failed / seen.store_requests
        if share >= FAILED_REQUESTS:
            yield Finding(
                "object-store", "log", "object store",
                f"{seen.store_failed} of {seen.store_requests} requests failed or were repeated "
                f"({share:.0%})",
                "Each repetition waits; what is throttled makes all others slower, too.",
                "Look for throttling and for the store's region; catchwater log wal describe, and "
                "catchwater_object_store_requests_total by operation.",
            )  # fmt: skip


def _small_groups(m: Measured) -> Iterator[Finding]:
    """A group that is behind has partitions to share, and too few members."""
    for group in sorted(m.groups, key=lambda each: each.name):
        behind = (group.lag_s or 0.0) >= GROUP_LAG_S
        if behind and 0 < group.members < group.partitions:
            yield Finding(
                "small-group", "processor", f"group {group.name}",
                f"{group.members} members read {group.partitions} partitions, and are "
                f"{group.lag_records} records and {group.lag_s:.0f} s behind",
                "A member reads its partitions one after the other.",
                f"Start up to {group.partitions - group.members} more members: catchwater group "
                f"describe {group.name} shows who reads what.",
            )  # fmt: skip


def _retention(m: Measured) -> Iterator[Finding]:
    """A restore would read what is deleted by then."""
    if m.short_topics:
        reach = "for ever" if m.needed_s is None else f"{m.needed_s:.0f} s"
        yield Finding(
            "short-retention", "log", ", ".join(m.short_topics),
            f"kept for less long than a restore reads back ({reach})",
            "After a failure the restore is refused: its input is gone.",
            "Lengthen retention.ms of it; on a log of ours pins keep it: "
            f"catchwater contract check {m.file}",
        )  # fmt: skip


RULES: Sequence[Callable[[Measured], Iterator[Finding]]] = (
    _stuck_epoch,
    _above_capacity,
    _hot_key,
    _hot_partition,
    _slow_function,
    _slow_decode,
    _waiting_function,
    _slow_call,
    _slow_sink,
    _small_epochs,
    _state_memory,
    _rebuilt_state,
    _jvm,
    _slow_wal,
    _small_groups,
    _retention,
)


# What rules share.


def _function(m: Measured, stage: int) -> str:
    return m.functions[stage] if stage < len(m.functions) else f"stage {stage}"


def _events(entry: EpochEntry) -> int:
    return sum(shard.events for shard in entry.shards if shard.stage == 0)


def _by_function(m: Measured, what: str) -> list[tuple[str, float]]:
    """Each function with its milliseconds an event of something."""
    spent: dict[int, float] = {}
    events: Counter[int] = Counter()
    for entry in m.entries:
        for shard in entry.shards:
            spent[shard.stage] = spent.get(shard.stage, 0.0) + getattr(shard, what)
            events[shard.stage] += shard.events
    return [(_function(m, stage), spent[stage] / max(1, events[stage])) for stage in sorted(events)]


def _calls(m: Measured) -> dict[tuple[int, str], list[CallEpoch]]:
    found: dict[tuple[int, str], list[CallEpoch]] = {}
    for entry in m.entries:
        for shard in entry.shards:
            for name, call in shard.calls.items():
                found.setdefault((shard.stage, name), []).append(call)
    return found
