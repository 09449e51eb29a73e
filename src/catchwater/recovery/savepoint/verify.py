"""Verifies that a savepoint could be restored: all its bytes, and the log from its offsets on.

Reads all objects and compares size and checksum, then reads every shard's state as a restore would.
Changes nothing. If the log or a target does not answer, the result is unknown, never good.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectStore, StoreError
from catchwater.recovery.contract import PartitionTail, check_covered
from catchwater.recovery.savepoint.create import Progress, state_log
from catchwater.recovery.savepoint.format import Savepoint, SavepointDamaged, StoredObject
from catchwater.state.parts import ShardDamaged

Verdict = Literal["pass", "unknown", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    verdict: Verdict
    subject: str
    message: str


def verify(
    store: ObjectStore,
    savepoint: Savepoint,
    tails: Mapping[tuple[str, int], PartitionTail] | None,
    pins: Sequence[Mapping[str, object]] | None,
    progress: Progress | None = None,
) -> list[Finding]:
    """Check all of a savepoint; `tails` and `pins` are None if the log did not answer."""
    damaged = list(_objects(store, savepoint, progress))
    findings = damaged or [Finding("pass", "objects", f"all {len(savepoint.objects)} are whole")]
    findings += _shards(store, savepoint)
    findings.append(_covered(savepoint, tails))
    if savepoint.pin:
        findings.append(_pinned(savepoint, pins))
    return findings


def read_whole(store: ObjectStore, name: str, stored: StoredObject) -> bytes:
    """An object's bytes; `StoreError` or ValueError if they are not what was written."""
    data = store.get(f"{name}/{stored.key}")
    if len(data) != stored.size_bytes:
        raise ValueError(f"it has {len(data)} bytes, and {stored.size_bytes} were written")
    if hashlib.sha256(data).hexdigest() != stored.sha256:
        raise ValueError("its checksum does not match")
    return data


def check_whole(store: ObjectStore, savepoint: Savepoint, progress: Progress | None = None) -> None:
    """Raise `SavepointDamaged` naming the first object that is not what the savepoint says."""
    for finding in _objects(store, savepoint, progress):
        raise SavepointDamaged(
            f"{savepoint.name}/{finding.subject} cannot be used: {finding.message}.",
            hint="catchwater savepoint verify tells everything that is damaged.",
        )


def _objects(
    store: ObjectStore, savepoint: Savepoint, progress: Progress | None
) -> Iterator[Finding]:
    for number, each in enumerate(savepoint.objects, 1):
        try:
            read_whole(store, savepoint.name, each)
        except (StoreError, ValueError) as error:
            yield Finding("fail", each.key, str(error))
        if progress:
            progress(number, len(savepoint.objects))


def _shards(store: ObjectStore, savepoint: Savepoint) -> Iterator[Finding]:
    for stage, function in enumerate(savepoint.functions):
        whole = 0
        for shard, at in sorted(savepoint.entry.positions(stage).items()):
            try:
                for _ in state_log(store, savepoint.name, function, shard).read(at):
                    pass
            except ShardDamaged as error:
                yield Finding("fail", f"{function}, shard {shard}", str(error))
            else:
                whole += 1
        if whole == savepoint.shards:
            yield Finding("pass", function, f"all {whole} shards can be read")


def _covered(
    savepoint: Savepoint, tails: Mapping[tuple[str, int], PartitionTail] | None
) -> Finding:
    if tails is None:
        return Finding("unknown", "log", "it could not be asked")
    return _asked("log", lambda: check_covered(savepoint.entry.end, tails),
                  "it holds everything from the savepoint's offsets on")  # fmt: skip


def _asked(subject: str, ask: Callable[[], None], good: str) -> Finding:
    try:
        ask()
    except CatchwaterError as error:
        return Finding("fail", subject, str(error))
    return Finding("pass", subject, good)


def _pinned(savepoint: Savepoint, pins: Sequence[Mapping[str, object]] | None) -> Finding:
    if pins is None:
        return Finding("unknown", "pin", f"{savepoint.pin} could not be asked for")
    states = {str(pin["id"]): str(pin["state"]) for pin in pins}
    state = states.get(savepoint.pin)
    if state in (None, "lost"):
        return Finding("fail", "pin", f"{savepoint.pin} is {state or 'not there'}")
    return Finding("pass", "pin", f"{savepoint.pin} is {state}")
