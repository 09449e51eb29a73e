"""Making contracts binding: each retained checkpoint pins the log from its offsets on.

A pin is named `<pipeline>/<epoch>`. It is set before the contract that promises it is written, and
released when its checkpoint can no longer be restored. Also asks the log what contracts need to
know of it. Relies on the control API; every call may be repeated.
"""

from collections.abc import Iterable, Mapping, Sequence

from catchwater.recovery.checkpoint import Checkpoint
from catchwater.recovery.contract import LogState, PartitionTail, pin_id
from catchwater.replay.control import Control


def hold(control: Control, pipeline: str, retained: Sequence[Checkpoint]) -> None:
    """Pin every retained checkpoint of the pipeline, and release its other pins."""
    wanted = {pin_id(pipeline, checkpoint.epoch): checkpoint for checkpoint in retained}
    held = {pin["id"] for pin in control.pins()}
    for name, checkpoint in wanted.items():
        if name not in held:
            control.set_pin(name, {"owner": pipeline, "positions": _positions(checkpoint)})
    for name in stale(pipeline, wanted, held):
        control.release_pin(name)


def stale(pipeline: str, wanted: Iterable[str], held: Iterable[str]) -> list[str]:
    """The pins of this pipeline that no retained checkpoint needs."""
    keep = set(wanted)
    prefix = f"{pipeline}/"
    return sorted(
        name
        for name in held
        if name.startswith(prefix) and name[len(prefix) :].isdigit() and name not in keep
    )


def _positions(checkpoint: Checkpoint) -> list[dict[str, str | int]]:
    return [
        {"topic": topic, "partition": int(partition), "offset": offset}
        for topic, partitions in checkpoint.end.offsets.items()
        for partition, offset in partitions.items()
    ]


def read_tails(control: Control, topics: Iterable[str]) -> dict[tuple[str, int], PartitionTail]:
    """What the log holds of these topics now."""
    return {
        (topic, int(each["partition"])): PartitionTail(
            int(each["log_start"]), int(each["high_watermark"]), int(each["bytes"])
        )
        for topic in topics
        for each in control.request("GET", f"/api/v1/topics/{topic}")["offsets"]
    }


def read_log_state(
    control: Control, pipeline: str, topics: Iterable[str], sinks: Iterable[str]
) -> LogState:
    """What `contract.check` compares a contract with."""
    epochs: Mapping[str, int] = {
        sink: int(last["epoch"]) for sink in sinks if (last := control.last_epoch(pipeline, sink))
    }
    pins = frozenset(pin["id"] for pin in control.pins())
    return LogState(read_tails(control, topics), pins, epochs)
