"""The status of a pipeline, from its checkpoint and the ends of its input.

What the epochs did and how long their parts took stands in the ledger; how far behind the pipeline
is only the log knows, which is asked for a moment and may be away. Reads only. What is found
becomes one record, a `PipelineStatus`, with the three verdicts (`catchwater.verdicts`).
"""

import shlex
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from catchwater import verdicts
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.versions import Identity, find_function
from catchwater.pipeline.supervise import Supervision, read_supervision
from catchwater.recovery import progress
from catchwater.recovery.checkpoint import commit_ms
from catchwater.recovery.contract import (
    Contract,
    LogState,
    PartitionTail,
    budgets,
    check,
    kept_ms,
    spelled,
)
from catchwater.recovery.estimate import load_samples
from catchwater.recovery.folder import SUPERVISOR, holder
from catchwater.recovery.intact import Look
from catchwater.recovery.ledger import (
    EpochEntry,
    Ledger,
    LedgerDamaged,
    OffsetMap,
    ShardEpoch,
    operator_ms,
    parts_ms,
    shown,
)
from catchwater.recovery.remote import elsewhere
from catchwater.replay.control import Control
from catchwater.replay.offsets import from_json
from catchwater.replay.options import parse_options
from catchwater.replay.subscription import Subscription
from catchwater.sinks.reconcile import comparisons
from catchwater.verdicts import (
    Behind,
    Checked,
    Drilled,
    Freshness,
    Lag,
    PipelineStatus,
    Restored,
)
from catchwater.wire.batch import next_record
from catchwater.wire.client import EARLIEST, LATEST, Client, RequestRefused
from catchwater.wire.connection import parse_bootstrap
from catchwater.wire.fields import TopicPartition

_ASK_S = 2.0
"""How long to wait for the log: a status that hangs helps nobody."""
_HELD_S = 30.0
"""For so long what the log holds back is not asked again."""
_COUNTED = ("events", "outputs", "late", "duplicates", "poisoned", "timers")
_QUIET_MS = 10_000
_MOST_RESTORES = 20
_SUPERVISES = ("running", "waiting")
"""What a supervisor says of itself as long as it is there."""


def status_of(
    config: PipelineConfig,
    found: Look,
    clock: Clock,
    log: "LogWatch | None" = None,
    state: str | None = None,
) -> PipelineStatus:
    """All there is to say; the log is asked over `log`, or over a connection of its own.

    `state` is given by the process that works on the checkpoint, when it ends.
    """
    folder, entries = found.folder, Ledger(found.folder).recent(found.entries)
    end = found.whole[-1].end if found.whole else None
    supervisor, process = _supervisor(folder), _worker(folder)
    if supervisor and process is not None and supervisor.state not in _SUPERVISES:
        supervisor = None  # it is gone, and another driver was started without one
    asked = _asked(config, end.offsets if end else None, found.contract, clock, log)
    lag, now_ms = asked.lag, clock.now_ms()
    supervised = supervisor.state if supervisor else None
    state = state or state_of(supervised, process, found, lag.records, now_ms)
    other = elsewhere(folder) if state not in (*_SUPERVISES, "idle") else None
    state = "elsewhere" if other else state
    if found.away and process is None:
        state = "unknown"
    bound = _bound(folder)
    checks = checked(found.contract, asked)
    freshness = freshness_of(config, found, lag, now_ms)
    reports = comparisons(folder)
    file = shlex.quote(config.file) if config.file else "FILE"
    contract = found.contract
    return PipelineStatus(
        name=config.name or (bound.pipeline if bound else _function_name(config)),
        state=state,
        correct=verdicts.correct(
            config.every_sink, reports, poisoned=entries[-1].poisoned if entries else 0,
            runs=process is not None, now_ms=now_ms, file=file,
        ),
        recoverable=verdicts.recoverable(
            checks, estimate=spelled(contract.restore) if contract else "", broken=found.broken,
            newest=found.last if found.last >= 0 else None, unknown=asked.unknown, file=file,
        ),
        fresh=verdicts.fresh(state, lag, freshness, file=file),
        reported_ms=now_ms,
        checkpoint=shown(folder),
        lag=lag,
        freshness=freshness,
        elsewhere=other,
        committed_epoch=found.last if found.last >= 0 else None,
        planned_epoch=found.planned.epoch if found.planned else None,
        last_finished_ms=entries[-1].finished_ms if entries else None,
        restorable=[each.epoch for each in found.whole],
        watermark_ms=end.watermark_ms if end else None,
        process=process,
        supervisor=msgspec.to_builtins(supervisor),
        versions={each.name: each.version for each in contract.functions} if contract else {},
        owner=config.owner,
        runbook=config.runbook,
        rate=rate_shown(entries, now_ms if state in ("running", "idle") else None),
        operator=_operator(entries),
        functions=functions_shown(entries, bound.functions if bound else ()),
        shards=shards_shown(entries, bound.functions if bound else ()),
        sinks=sinks_shown(entries),
        compared=reports,
        recent_epochs=[epoch_shown(entry, folder) for entry in entries],
        checks=[
            {"verdict": each.grade, "subject": each.subject, "message": each.message}
            for each in checks or ()
        ],
        restore=restore_shown(contract),
        history_margin_s=margin_s(contract),
        catching_up=None if process is None else catching_up_shown(found, now_ms),
        drills=drilled(config.folder / "drills"),
        restores=restored(folder),
        problems=found.problems,
    )  # fmt: skip


def freshness_of(config: PipelineConfig, found: Look, lag: Lag, now_ms: int) -> Freshness:
    """What is promised, and what there is of it."""
    last = found.entries[-1] if found.entries else None
    declared_ms = config.max_staleness_ms
    trigger, _, unit = config.trigger.partition(" ")
    return Freshness(
        max_staleness_s=(declared_ms or verdicts.MAX_STALENESS_MS) / 1000,
        is_declared=declared_ms is not None,
        staleness_s=lag.seconds,
        checkpoint_age_s=_since_s(last.finished_ms, now_ms) if last else None,
        epoch_s=_since_s(last.end.clock_ms, last.finished_ms) if last else None,
        trigger_s=int(trigger) / 1000 if unit else None,
        under_way_s=_since_s(found.planned.clock_ms, now_ms) if found.planned else None,
    )


def _since_s(from_ms: int, to_ms: int) -> float:
    return max(0, to_ms - from_ms) / 1000


def checked(contract: Contract | None, asked: "LogAnswer") -> list[Checked] | None:
    """What holds of a contract: its budgets, and if the log was asked, its input and its pin.

    The sinks are not asked here: a comparison of their rows says more than their marks.
    """
    if contract is None:
        return None
    if asked.log is None:
        found = budgets(contract)
    else:
        found = check(msgspec.structs.replace(contract, sinks={}), asked.log)
    return [Checked(each.verdict, each.subject, each.message) for each in found]


def margin_s(contract: Contract | None) -> float | None:
    """How much earlier than a restore needs it the log begins, by the input's rate."""
    if contract is None or not contract.inputs or not contract.restore.input_per_s:
        return None
    least = min(each.offset - each.log_start for each in contract.inputs)
    return max(0.0, least * len(contract.inputs) / contract.restore.input_per_s)


def restored(folder: Path) -> list[Restored]:
    """The newest restores that were measured on this checkpoint, oldest first."""
    return [
        Restored(
            each.ended_ms,
            each.whole_s,
            each.estimated_s,
            each.detection_s,
            (each.scheduling_s or 0.0) + each.startup_s,
            each.state_s,
            each.first_s + each.replay_s,
        )
        for each in load_samples(folder)[-_MOST_RESTORES:]
    ]


class _Result(msgspec.Struct):
    """As much of a drill's result as is shown."""

    drill: str
    verdict: str
    started_ms: int
    restore_s: float | None = None
    estimate_s: float | None = None


def drilled(folder: Path) -> list[Drilled]:
    """The newest results of each drill that are kept here; what is no result is left out."""
    try:
        return _drilled(folder, folder.stat().st_mtime_ns)
    except OSError:
        return []


@lru_cache(maxsize=8)
def _drilled(folder: Path, changed_ns: int) -> list[Drilled]:
    """Read again only when a result has come: there may be hundreds."""
    results: dict[str, list[_Result]] = {}
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, msgspec.DecodeError):
            found = msgspec.json.decode(path.read_bytes(), type=_Result)
            results.setdefault(found.drill, []).append(found)
    return [
        Drilled(
            name,
            newest.verdict,
            newest.started_ms,
            next((each.restore_s for each in ran if each.restore_s is not None), None),
            next((each.estimate_s for each in ran if each.restore_s is not None), None),
            next((each.started_ms for each in ran if each.verdict == "pass"), None),
        )
        for name, found in sorted(results.items())
        for ran in [sorted(found, key=lambda each: -each.started_ms)]
        for newest in ran[:1]
    ]


def restore_shown(contract: Contract | None) -> dict[str, Any] | None:
    """What the newest contract says of a restore, and of its budgets; None: there is none yet.

    Seconds are None where a restore never catches up.
    """
    if contract is None:
        return None
    restore = contract.restore
    return {
        "checkpoint": contract.epoch,
        **{name: getattr(restore, name) for name in ("seconds", "low_s", "high_s", "samples")},
        "infrastructure_s": restore.infrastructure_s,
        "application_s": restore.application_s,
        "input_per_s": restore.input_per_s,
        "capacity_per_s": restore.capacity_per_s,
        "capacity": restore.capacity,
        "assumed": restore.assumed,
        "with_local_s": restore.with_local_s,
        "missing_per_s": restore.missing_per_s,
        "recovery_point_s": contract.recovery_point_s,
        "replay_records": contract.replay_records,
        "replay_bytes": contract.replay_bytes,
        "max_restore_s": contract.max_restore_s,
        "max_replay_s": contract.max_replay_s,
        "budgets": [asdict(each) for each in budgets(contract)],
    }


def catching_up_shown(found: Look, now_ms: int) -> dict[str, Any] | None:
    """How far a restore is that is under way; None: there is none."""
    under_way = progress.read(found.folder)
    if under_way is None:
        return None
    restore = found.contract.restore if found.contract else None
    reached = progress.progress(
        under_way, found.entries, now_ms=now_ms,
        input_per_s=restore.input_per_s if restore else 0.0,
        capacity_per_s=restore.capacity_per_s if restore else None,
    )  # fmt: skip
    plain: dict[str, Any] = msgspec.to_builtins(reached)
    return plain


def _function_name(config: PipelineConfig) -> str:
    """What the first start will call the pipeline, if its function can be imported."""
    try:
        return find_function(config.functions[0], config.folder).name
    except CatchwaterError:
        return config.functions[0]


def _bound(folder: Path) -> Identity | None:
    try:
        return Identity.read(folder)
    except (LedgerDamaged, OSError):  # which is one of the problems that are shown
        return None


def _worker(folder: Path) -> int | None:
    """The process that works on the checkpoint, 0 if it does not say which it is."""
    try:
        return holder(folder)
    except OSError:
        return None


def _supervisor(folder: Path) -> Supervision | None:
    """What the checkpoint's supervisor says of itself; `killed` if it had no time to say more."""
    try:
        found = read_supervision(folder)
        is_gone = holder(folder, SUPERVISOR) is None
    except (LedgerDamaged, OSError):
        return None
    if found and found.state in _SUPERVISES and is_gone:
        return msgspec.structs.replace(found, state="killed", driver=None, spare=None)
    return found


def _operator(entries: Sequence[EpochEntry]) -> dict[str, Any]:
    """How large the state is, and how long events of the recent epochs were in the operator."""
    last = entries[-1] if entries else None
    p50, p99 = operator_ms([shard for entry in entries for shard in entry.shards], 0.5, 0.99)
    return {
        "keys": last.total("keys") if last else 0,
        "state_bytes": last.total("state_bytes") if last else 0,
        "operator_p50_ms": p50,
        "operator_p99_ms": p99,
    }


def epoch_shown(entry: EpochEntry, folder: Path) -> dict[str, Any]:
    """One epoch: what went into the chain and what came out, and where its time went."""
    return {
        "epoch": entry.epoch,
        "events": _sum(_stage(entry, 0), "events"),
        "outputs": _sum(_stage(entry, _last_stage(entry)), "outputs"),
        **{name: entry.total(name) for name in ("late", "duplicates", "poisoned", "delta_bytes")},
        "restore_s": max((shard.restore_s for shard in entry.shards), default=0.0),
        "finished_ms": entry.finished_ms,
        **times_of(entry, folder),
    }


def times_of(entry: EpochEntry, folder: Path) -> dict[str, float | None]:
    """Milliseconds of an epoch's parts (`parts_ms`), and of the ledger's entry and Spark's commit.

    None where that was not measured.
    """
    parts = parts_ms(entry)
    commit = commit_ms(folder, entry.epoch, entry.finished_ms)
    found = {
        "source_ms": parts.get("source"),
        "operator_ms": parts.get("function"),
        "sinks_ms": parts.get("sinks"),
        "commit_ms": commit,
        "total_ms": sum(parts.values()) + (commit or 0) if parts else None,
    }
    return {name: None if part is None else round(part, 1) for name, part in found.items()}


def functions_shown(entries: Sequence[EpochEntry], names: Sequence[str]) -> list[dict[str, Any]]:
    """Each function of the chain: what it did in these epochs, and what it holds after them."""
    count = max((shard.stage + 1 for entry in entries for shard in entry.shards), default=0)
    rows = []
    for stage in range(max(count, len(names))):
        shards = [shard for entry in entries for shard in _stage(entry, stage)]
        now = _stage(entries[-1], stage) if entries else []
        p50, p99 = operator_ms(shards, 0.5, 0.99)
        rows.append(
            {
                "function": names[stage] if stage < len(names) else f"stage {stage}",
                **{name: _sum(shards, name) for name in _COUNTED},
                "keys": _sum(now, "keys"),
                "state_bytes": _sum(now, "state_bytes"),
                "operator_p50_ms": p50,
                "operator_p99_ms": p99,
            }
        )
    return rows


def shards_shown(entries: Sequence[EpochEntry], names: Sequence[str]) -> list[dict[str, Any]]:
    """Each shard: the machine that has it, how often that was another one, and what it cost.

    `read_bytes` is what was read of the state log because the machine had not the shard, or an
    older state of it: over these epochs, and a machine that has it reads nothing.
    """
    rows = []
    for last in entries[-1].shards if entries else ():
        key = (last.stage, last.shard)
        of = [each for e in entries for each in e.shards if (each.stage, each.shard) == key]
        rows.append(
            {
                "function": names[last.stage] if last.stage < len(names) else f"stage {last.stage}",
                "shard": last.shard,
                "host": last.host,
                "state_bytes": last.state_bytes,
                "epochs": len(of),
                "moves": sum(a.host != b.host for a, b in pairwise(of)),
                "stale": sum(each.rebuilt_bytes > 0 for each in of),
                "read_bytes": _sum(of, "rebuilt_bytes"),
            }
        )
    return rows


def sinks_shown(entries: Sequence[EpochEntry]) -> list[dict[str, Any]]:
    """Each sink: how far it is, and what it was given in these epochs."""
    newest = {name: entry for entry in entries for name in entry.sinks}
    return [
        {
            "sink": name,
            "target": entry.sinks[name].topic,
            "epoch": entry.epoch,
            "records": sum(e.sinks[name].records for e in entries if name in e.sinks),
            "offsets": _next_offsets(entries, name),
            "commit_ms": round(entry.sink_ms[name], 1) if name in entry.sink_ms else None,
        }
        for name, entry in sorted(newest.items())
    ]


def _next_offsets(entries: Sequence[EpochEntry], sink: str) -> dict[str, int]:
    """Partition → the offset behind the sink's last record there, as far as these epochs tell."""
    found: dict[str, int] = {}
    for entry in entries:
        if sink in entry.sinks:
            found |= {p: last + 1 for p, (_, last) in entry.sinks[sink].offsets.items()}
    return dict(sorted(found.items(), key=lambda item: int(item[0])))


def rate_shown(entries: Sequence[EpochEntry], until_ms: int | None) -> dict[str, float | None]:
    """Events into the chain and outputs of it a second, over the epochs behind the first of these.

    `until_ms` is now, for a pipeline that runs: one that has nothing to do slows down.
    """
    if len(entries) < 2:
        return {"in_per_s": None, "out_per_s": None, "over_s": None}
    ends_ms = max(until_ms or 0, entries[-1].finished_ms)
    over_s = max(1, ends_ms - entries[0].finished_ms) / 1000
    events = sum(_sum(_stage(entry, 0), "events") for entry in entries[1:])
    outputs = sum(_sum(_stage(entry, _last_stage(entry)), "outputs") for entry in entries[1:])
    return {
        "in_per_s": round(events / over_s, 1),
        "out_per_s": round(outputs / over_s, 1),
        "over_s": round(over_s, 1),
    }


class LogAnswer(NamedTuple):
    """What the log has answered."""

    lag: Lag
    log: LogState | None = None
    """None: it was not asked, or did not answer."""
    unknown: str | None = None
    """Why not."""


class _Held(NamedTuple):
    """What the log keeps, which is asked for less often than where it ends."""

    epoch: int
    """Whose contract it was asked for."""
    until_s: float
    starts: Mapping[TopicPartition, int]
    pins: Mapping[str, str]
    kept_ms: Mapping[str, int]


class LogWatch:
    """Asks the log how far behind a pipeline is, and whether it holds what a restore needs.

    Keeps its connection from look to look. Not for several threads.
    """

    def __init__(self, config: PipelineConfig, clock: Clock) -> None:
        self._options = parse_options(config.source_options)
        self._clock = clock
        self._client: Client | None = None
        self._control: Control | None = None
        self._is_ours: bool | None = None
        """Whether the log has a control API; None: not known yet."""
        self._held: _Held | None = None
        self._times: dict[tuple[TopicPartition, int], tuple[int, int | None]] = {}
        """Place → markers that lie there, and the time of the record behind them, ms."""

    def close(self) -> None:
        """Close the connection; the next look opens another one."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def look(self, read: OffsetMap | None, contract: Contract | None) -> LogAnswer:
        """Ask about these positions, and what the contract needs. Never raises."""
        if read is None:
            return LogAnswer(
                Lag(unknown="no epoch was committed yet"), None, "there is no checkpoint"
            )
        try:
            return self._look(from_json(read), contract)
        except CatchwaterError as error:
            self.close()
            return LogAnswer(Lag(unknown=str(error)), None, str(error))

    def _look(self, at: Mapping[TopicPartition, int], contract: Contract | None) -> LogAnswer:
        if self._client is None:
            if not any(map(_answers, parse_bootstrap(self._options.bootstrap))):
                why = f"no broker at {self._options.bootstrap} answers"
                return LogAnswer(Lag(unknown=why), None, why)
            self._client = Client(
                self._options.bootstrap, timeout_s=_ASK_S, clock=self._clock,
                security=self._options.security,
            )  # fmt: skip
        needed = {(each.topic, each.partition) for each in contract.inputs} if contract else set()
        ends = self._client.list_offsets(dict.fromkeys({*at, *needed}, LATEST))
        lag = self._lag(at, {key: ends[key] for key in at if key in ends})
        if contract is None:
            return LogAnswer(lag)
        now_s = self._clock.monotonic_s()
        held = self._held
        if held is None or held.epoch != contract.epoch or now_s > held.until_s:
            begins = self._client.list_offsets(dict.fromkeys(needed, EARLIEST))
            try:
                kept = self._kept(self._client, {topic for topic, _ in needed})
            except CatchwaterError as error:
                return LogAnswer(lag, None, str(error))
            held = self._held = _Held(contract.epoch, now_s + _HELD_S, begins, *kept)
        tails = {key: PartitionTail(held.starts[key], ends[key], 0) for key in needed}
        return LogAnswer(lag, LogState(tails, held.pins, {}, held.kept_ms))

    def _kept(
        self, client: Client, topics: Collection[str]
    ) -> tuple[Mapping[str, str], Mapping[str, int]]:
        """Pin → its state; of another Kafka, which has none, topic → how old records become."""
        control = self.find_control()
        if control is not None:
            return {str(p["id"]): str(p["state"]) for p in control.pins()}, {}
        try:
            configs = client.topic_configs(sorted(topics))
        except RequestRefused:
            return {}, {}
        return {}, {topic: kept_ms(each) for topic, each in configs.items()}

    def find_control(self) -> Control | None:
        """The log's control API, asked for once; None: another Kafka has none."""
        if self._is_ours is None:
            source = Subscription(self._options, self._clock, timeout_s=_ASK_S)
            try:
                url = source.log_control_url()
            finally:
                source.close()
            self._is_ours = bool(url)
            if url:
                self._control = Control(url, timeout_s=_ASK_S, clock=self._clock)
        return self._control

    @property
    def control(self) -> Control | None:
        """The log's control API; None before the first look, and for another Kafka."""
        return self._control

    def _lag(self, at: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> Lag:
        places = {(key, at[key]) for key, end in ends.items() if end > at[key]}
        self._times = {place: self._times[place] for place in places if place in self._times}
        self._find_times({key: offset for key, offset in places - self._times.keys()})
        now_ms, behind = self._clock.now_ms(), []
        for key, offset in places:
            markers, time_ms = self._times.get((key, offset), (0, None))
            records = ends[key] - offset - markers
            if records > 0:
                late_s = None if time_ms is None else max(0, now_ms - time_ms) / 1000
                behind.append(Behind(*key, records, late_s))
        return lag_of(behind)

    def _find_times(self, places: Mapping[TopicPartition, int]) -> None:
        """The time of the record that comes next at each place, which is not asked for again."""
        assert self._client is not None
        if not places:
            return
        found = self._client.fetch(
            places, max_bytes=2**23, max_partition_bytes=2**20, max_wait_ms=0
        )
        for key, answer in found.items():
            if key in places:
                markers, time_ms = next_record(answer.records, places[key])
                if time_ms is not None or markers:
                    self._times[key, places[key]] = markers, time_ms


def _furthest(each: Behind) -> tuple[float, int, str, int]:
    return -(each.seconds or 0.0), -each.records, each.topic, each.partition


def lag_of(behind: Iterable[Behind]) -> Lag:
    """The lag over all partitions: those that are not behind need not be there."""
    worst = sorted(behind, key=_furthest)
    known = [each.seconds for each in worst if each.seconds is not None]
    if not worst:
        return Lag(0, 0.0)
    return Lag(
        sum(each.records for each in worst),
        max(known, default=None),
        partitions=worst[: verdicts.MAX_SHOWN],
    )


def lag_shown(config: PipelineConfig, read: OffsetMap | None, clock: Clock) -> Lag:
    """How many records lie behind what was read, and how old the oldest of them is."""
    return _asked(config, read, None, clock, None).lag


def _asked(
    config: PipelineConfig,
    read: OffsetMap | None,
    contract: Contract | None,
    clock: Clock,
    log: LogWatch | None,
) -> LogAnswer:
    if log is not None:
        return log.look(read, contract)
    own = LogWatch(config, clock)
    try:
        return own.look(read, contract)
    finally:
        own.close()


def _answers(address: tuple[str, int]) -> bool:
    """Whether somebody listens there: a client would go on trying where nobody does."""
    try:
        with socket.create_connection(address, _ASK_S):
            return True
    except OSError:
        return False


def _last_stage(entry: EpochEntry) -> int:
    return max((shard.stage for shard in entry.shards), default=0)


def _stage(entry: EpochEntry, stage: int) -> list[ShardEpoch]:
    return [shard for shard in entry.shards if shard.stage == stage]


def _sum(shards: Sequence[ShardEpoch], field: str) -> int:
    return sum(getattr(shard, field) for shard in shards)


def state_of(
    supervised: str | None,
    process: int | None,
    found: Look,
    lag: int | None,
    now_ms: int,
) -> str:
    """In a word: what the supervisor says, or whether there is a process at all.

    A pipeline that runs, has read everything and has had no epoch for a while is `idle`. A process
    that works where the last supervisor is gone was started without one.
    """
    if supervised != "waiting" and process is not None:
        entries = found.entries
        quiet = bool(entries) and now_ms - entries[-1].finished_ms > _QUIET_MS
        return "idle" if quiet and lag == 0 else "running"
    if supervised is not None:
        return supervised
    return "stopped" if found.entries or found.last >= 0 or found.planned else "never started"
