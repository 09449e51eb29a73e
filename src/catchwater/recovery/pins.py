"""Making contracts binding: each restore point pins the log from its offsets on.

A pin is named `<pipeline>/<epoch>`; `<pipeline>/history` holds what functions need of the past. A
pin is set before the contract that promises it is written, and released when its checkpoint can no
longer be restored. A pin that the log has lost (its cap was passed, or its topic deleted) promises
nothing: it is set anew, which the log refuses where offsets are gone. Also asks the log what
contracts need to know of it. Relies on the control API; every call may be repeated.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from catchwater.recovery.checkpoint import Checkpoint
from catchwater.recovery.contract import HistoryGone, LogState, PartitionTail, Tails, pin_id
from catchwater.recovery.ledger import OffsetMap, SourceOffset
from catchwater.replay.control import Control, ControlRefused
from catchwater.wire.client import EARLIEST, LATEST, Client
from catchwater.wire.security.settings import UNSECURED, Security

_HISTORY = "history"


def hold(
    control: Control, pipeline: str, newest: Sequence[Checkpoint], tails: Tails | None = None
) -> list[Checkpoint]:
    """Pin these checkpoints (oldest first) and release the pipeline's other pins; what is held.

    What one needs of a topic's table, as `tails` say, no pin has to keep.

    After a restore, checkpoints are among the newest again whose pins were released before and
    whose input may be gone: they cannot be promised any more and are left out. Raises
    `ControlRefused` if not even the newest can be held.
    """
    pins = {str(pin["id"]): pin for pin in control.pins()}
    there = {name for name, pin in pins.items() if pin["state"] != "lost"}
    held = []
    for checkpoint in newest:
        name = pin_id(pipeline, checkpoint.epoch)
        try:
            if name not in there:
                held_from = positions(checkpoint.end.needed, tails)
                control.set_pin(name, {"owner": pipeline, "positions": held_from})
        except ControlRefused as refusal:
            if not refusal.missing or checkpoint is newest[-1]:
                raise
            continue
        held.append(checkpoint)
    for name in stale(pipeline, [pin_id(pipeline, each.epoch) for each in held], pins):
        control.release_pin(name)
    return held


def hold_history(
    control: Control, pipeline: str, since: Mapping[tuple[str, int], int] | None
) -> None:
    """Pin the log from these offsets on for functions that need history; None: release that pin."""
    name = f"{pipeline}/{_HISTORY}"
    if since is None:
        if any(pin["id"] == name for pin in control.pins()):
            control.release_pin(name)
        return
    places: list[dict[str, str | int]] = [
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in sorted(since.items())
    ]
    try:
        control.set_pin(name, {"owner": pipeline, "positions": places})
    except ControlRefused as refusal:
        if not refusal.missing:  # retention has been faster, and is next time with another offset
            raise


def refuse_lost(control: Control, end: SourceOffset, tails: Tails) -> None:
    """Raise `HistoryGone` if the log says that it has deleted what a pin held for these offsets.

    Offsets alone do not tell where a topic was deleted and made anew.
    """
    held = {
        (str(each["topic"]), int(each["partition"]), int(each["offset"]))
        for each in positions(end.needed, tails)
    }
    lost = [pin for pin in control.pins() if pin["state"] == "lost" and _places(pin) == held]
    if not lost:
        return
    needed = [
        f"{topic}-{partition} from offset {offset} on (the log begins at {tail.log_start})"
        for topic, partition, offset in sorted(held)
        if (tail := tails.get((topic, partition)))
    ]
    raise HistoryGone(
        f"The pin {lost[0]['id']} is lost: the log has deleted records that the checkpoint of "
        f"epoch {end.epoch} needs. It needs {', '.join(needed)}.",
        hint="Restore a newer checkpoint, or rebuild from what the log still holds.",
    )


def stale(pipeline: str, wanted: Iterable[str], held: Iterable[str]) -> list[str]:
    """The pins of this pipeline that no retained checkpoint needs."""
    keep = set(wanted)
    prefix = f"{pipeline}/"
    return sorted(
        name
        for name in held
        if name.startswith(prefix) and name[len(prefix) :].isdigit() and name not in keep
    )


def _places(pin: Mapping[str, Any]) -> set[tuple[str, int, int]]:
    return {(each["topic"], each["partition"], each["offset"]) for each in pin["positions"]}


def positions(offsets: OffsetMap, tails: Tails | None = None) -> list[dict[str, str | int]]:
    """What a pin holds, as the control API takes it: everything from these offsets on.

    That is the log from its start on, where what lies before is read from the topic's table.
    """
    return [
        {"topic": topic, "partition": int(partition), "offset": offset}
        for topic, partitions in offsets.items()
        for partition, needed in partitions.items()
        for offset in (_in_log(needed, (tails or {}).get((topic, int(partition)))),)
    ]


def _in_log(offset: int, tail: PartitionTail | None) -> int:
    if tail is None or not tail.first <= offset < tail.log_start:
        return offset
    return tail.log_start


def read_tails(control: Control, topics: Iterable[str]) -> dict[tuple[str, int], PartitionTail]:
    """What the log holds of these topics now."""
    return {
        (topic, int(each["partition"])): PartitionTail(
            int(each["log_start"]), int(each["high_watermark"]), int(each["bytes"])
        )
        for topic in topics
        for each in control.request("GET", f"/api/v1/topics/{topic}")["offsets"]
    }


def kafka_tails(
    bootstrap: str,
    topics: Iterable[str],
    security: Security = UNSECURED,
    *,
    timeout_s: float = 30.0,
) -> dict[tuple[str, int], PartitionTail]:
    """The same of a Kafka that is not ours, which does not tell how many bytes it holds."""
    names = list(topics)
    with Client(bootstrap, timeout_s=timeout_s, security=security) as client:
        found = client.metadata(names)
        keys = [(topic, number) for topic in names for number in found.partitions(topic)]
        firsts = client.list_offsets(dict.fromkeys(keys, EARLIEST))
        ends = client.list_offsets(dict.fromkeys(keys, LATEST))
    return {key: PartitionTail(firsts[key], ends[key], 0) for key in keys}


def read_log_state(
    control: Control, topics: Iterable[str], sink_epochs: Mapping[str, int | None]
) -> LogState:
    """What `contract.check` compares a contract with; the sinks were asked already."""
    pins = {str(pin["id"]): str(pin["state"]) for pin in control.pins()}
    return LogState(read_tails(control, topics), pins, sink_epochs)
