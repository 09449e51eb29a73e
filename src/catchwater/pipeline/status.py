"""The status of a pipeline, from its checkpoint and the ends of its input.

What the epochs did and how long their parts took stands in the ledger; how far behind the pipeline
is only the log knows, which is asked for a moment and may be away. Reads only.
"""

import socket
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.pipeline.run import identity
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.versions import find_function
from catchwater.pipeline.supervise import Supervision, read_supervision
from catchwater.recovery import progress
from catchwater.recovery.checkpoint import commit_ms
from catchwater.recovery.contract import Contract, budgets
from catchwater.recovery.folder import SUPERVISOR, holder
from catchwater.recovery.intact import Look
from catchwater.recovery.ledger import (
    EpochEntry,
    LedgerDamaged,
    OffsetMap,
    ShardEpoch,
    operator_ms,
    parts_ms,
)
from catchwater.recovery.remote import elsewhere, shown
from catchwater.replay.offsets import from_json
from catchwater.replay.options import parse_options
from catchwater.wire.batch import BatchError, read_header
from catchwater.wire.client import LATEST, Client
from catchwater.wire.connection import parse_bootstrap
from catchwater.wire.fields import TopicPartition

_ASK_S = 2.0
"""How long to wait for the log: a status that hangs helps nobody."""
_COUNTED = ("events", "outputs", "late", "duplicates", "poisoned", "timers")
_QUIET_MS = 10_000
_SUPERVISES = ("running", "waiting")
"""What a supervisor says of itself as long as it is there."""


def status_of(config: PipelineConfig, found: Look, clock: Clock) -> dict[str, Any]:
    """All there is to say, as `--json` prints it."""
    folder, entries = found.folder, found.entries
    end = found.whole[-1].end if found.whole else None
    supervisor, process = _supervisor(folder), _worker(folder)
    if supervisor and process is not None and supervisor.state not in _SUPERVISES:
        supervisor = None  # it is gone, and another driver was started without one
    lag, now_ms = lag_shown(config, end.offsets if end else None, clock), clock.now_ms()
    state = state_of(supervisor.state if supervisor else None, process, found, lag, now_ms)
    other = elsewhere(folder) if state not in (*_SUPERVISES, "idle") else None
    bound = _bound(folder)
    return {
        "name": config.name or (bound.pipeline if bound else _function_name(config)),
        "state": "elsewhere" if other else state,
        "elsewhere": other,
        "checkpoint": shown(folder),
        "committed_epoch": found.last if found.last >= 0 else None,
        "planned_epoch": found.planned.epoch if found.planned else None,
        "last_finished_ms": entries[-1].finished_ms if entries else None,
        "restorable": [each.epoch for each in found.whole],
        "watermark_ms": end.watermark_ms if end else None,
        "process": process,
        "supervisor": msgspec.to_builtins(supervisor),
        "lag": lag,
        "rate": rate_shown(entries, now_ms if state in ("running", "idle") else None),
        "operator": _operator(entries),
        "functions": functions_shown(entries, bound.functions if bound else ()),
        "sinks": sinks_shown(entries),
        "recent_epochs": [epoch_shown(entry, folder) for entry in entries],
        "restore": restore_shown(found.contract),
        "catching_up": None if process is None else catching_up_shown(found, now_ms),
        "problems": found.problems,
    }


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


def _bound(folder: Path) -> identity.Identity | None:
    try:
        return identity.read(folder)
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


def lag_shown(config: PipelineConfig, read: OffsetMap | None, clock: Clock) -> dict[str, Any]:
    """How many records lie behind what was read, and how old the oldest of them is, seconds.

    `unknown` says why that is not known.
    """
    if read is None:
        return _lag(unknown="no epoch was committed yet")
    options = parse_options(config.source_options)
    if not any(map(_answers, parse_bootstrap(options.bootstrap))):
        return _lag(unknown=f"no broker at {options.bootstrap} answers")
    at: Mapping[TopicPartition, int] = from_json(read)
    try:
        with closing(
            Client(options.bootstrap, timeout_s=_ASK_S, clock=clock, security=options.security)
        ) as client:
            ends = client.list_offsets(dict.fromkeys(at, LATEST))
            behind = {key: at[key] for key, end in ends.items() if end > at[key]}
            records = sum(end - at[key] for key, end in ends.items() if key in behind)
            oldest = _oldest_ms(client, behind) if behind else None
    except CatchwaterError as error:
        return _lag(unknown=str(error))
    late_ms = 0 if not behind else None if oldest is None else clock.now_ms() - oldest
    return _lag(records, None if late_ms is None else max(0, late_ms) / 1000)


def _answers(address: tuple[str, int]) -> bool:
    """Whether somebody listens there: a client would go on trying where nobody does."""
    try:
        with socket.create_connection(address, _ASK_S):
            return True
    except OSError:
        return False


def _lag(
    records: int | None = None, seconds: float | None = None, unknown: str | None = None
) -> dict[str, Any]:
    return {"records": records, "seconds": seconds, "unknown": unknown}


def _oldest_ms(client: Client, behind: Mapping[TopicPartition, int]) -> int | None:
    """The oldest timestamp of the batches that come next; None if there is none."""
    found = client.fetch(behind, max_bytes=2**23, max_partition_bytes=2**20, max_wait_ms=0)
    times = []
    for answer in found.values():
        with suppress(BatchError):  # one that is cut short
            header = read_header(answer.records)
            times.append(header.max_timestamp if header.log_append_time else header.base_timestamp)
    return min(times, default=None)


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
    lag: Mapping[str, Any],
    now_ms: int,
) -> str:
    """In a word: what the supervisor says, or whether there is a process at all.

    A pipeline that runs, has read everything and has had no epoch for a while is `idle`. A process
    that works where the last supervisor is gone was started without one.
    """
    if supervised != "waiting" and process is not None:
        entries = found.entries
        quiet = bool(entries) and now_ms - entries[-1].finished_ms > _QUIET_MS
        return "idle" if quiet and lag["records"] == 0 else "running"
    if supervised is not None:
        return supervised
    return "stopped" if found.entries or found.last >= 0 or found.planned else "never started"
