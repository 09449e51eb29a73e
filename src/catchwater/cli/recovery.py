"""`catchwater recovery …`: what a restore would do, and doing it. Nothing is ever deleted."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import (
    AsJson,
    DryRun,
    PipelineFile,
    Yes,
    agreed,
    noun,
    print_rows,
    spaced,
    talk,
)

if TYPE_CHECKING:
    from catchwater.recovery.checkpoint import Checkpoint
    from catchwater.recovery.contract import PartitionTail
    from catchwater.recovery.intact import Look

app = noun()


@app.callback()
def recovery() -> None:
    """Explain and carry out a restore."""


@app.command()
def explain(file: PipelineFile, as_json: AsJson = False) -> None:
    """List every checkpoint with what a restore would replay, and how long that would take.

    Says of each whether its files are whole and the log still holds that, and if not, which file
    is damaged or what is missing.
    """
    from catchwater.cli.console import look_here
    from catchwater.config import CatchwaterError
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.recovery.contract import spelled

    config, found = look_here(file)
    rows: dict[int, Sequence[object]] = {
        epoch: (epoch, False, None, None, None, None, why) for epoch, why in found.broken.items()
    }
    tails, unasked = {}, None
    try:
        topics = {topic for each in found.whole for topic in each.end.needed}
        tails = OpenPipeline(config).tails(topics) if topics else {}
    except CatchwaterError as error:
        unasked = error
    for each in found.whole:
        if unasked:
            unknown = "the log could not be asked"
            rows[each.epoch] = (each.epoch, None, None, None, None, None, unknown)
        else:
            why = _why_not(each, tails)
            replay_records = _to_replay(each, tails)
            took = _takes(found, each.epoch, replay_records)
            rows[each.epoch] = (each.epoch, not why, replay_records, *took, why)
    for problem in found.problems:
        if problem not in found.broken.values():
            talk(problem)
    if found.contract is not None and found.contract.restore.missing_per_s:
        talk(f"a restore takes for ever: {spelled(found.contract.restore)}")
    times = ["restore_s", "infrastructure_s", "application_s"]
    columns = ["checkpoint", "restorable", "replay_records", *times, "why_not"]
    if rows or as_json:
        print_rows(columns, [rows[epoch] for epoch in sorted(rows)], as_json=as_json)
    else:
        talk(f"there is no checkpoint in {config.checkpoint} yet")
    if unasked:
        raise unasked


def _takes(
    found: "Look", epoch: int, replay_records: int
) -> tuple[float | None, float | None, float | None]:
    """Seconds until caught up: the whole, without and with records being read; None: never."""
    from catchwater.recovery.estimate import Pace, estimate, load_samples

    state_bytes = sum(e.total("state_bytes") for e in found.entries if e.epoch == epoch)
    restore = estimate(
        load_samples(found.folder),
        state_bytes=state_bytes,
        replay_records=replay_records,
        pace=found.contract.restore.pace if found.contract else Pace(),
    )
    return restore.seconds, restore.infrastructure_s, restore.application_s


def _why_not(checkpoint: "Checkpoint", tails: "Mapping[tuple[str, int], PartitionTail]") -> str:
    """Why the log does not let the pipeline go on from there; nothing if it does."""
    from catchwater.config import CatchwaterError
    from catchwater.recovery.contract import check_covered

    try:
        check_covered(checkpoint.end, tails)
    except CatchwaterError as error:
        return str(error)
    return ""


@app.command()
def restore(
    file: PipelineFile,
    checkpoint: Annotated[int, typer.Option("--checkpoint", metavar="N", help="The epoch.")],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Go back to an older checkpoint.

    Later epochs are moved aside, not deleted, and replayed with the same ends.
    The pipeline must not be running. Exit 5 if the log no longer holds what would be replayed.
    """
    from catchwater.cli.console import open_here
    from catchwater.pipeline.run.versions import check_reach
    from catchwater.recovery.checkpoint import find
    from catchwater.recovery.contract import check_covered
    from catchwater.recovery.pins import refuse_lost
    from catchwater.recovery.rewind import rewind

    pipeline = open_here(file)
    config = pipeline.config
    chosen = find(config.checkpoint, checkpoint)
    tails = pipeline.tails(chosen.end.needed)
    check_covered(chosen.end, tails)
    check_reach(config.checkpoint, checkpoint)
    if pipeline.control is not None:  # another Kafka has no pins that could be lost
        refuse_lost(pipeline.control, chosen.end, tails)
    plan = f"restore checkpoint {checkpoint} of {config.checkpoint} and replay "
    plan += f"{spaced(_to_replay(chosen, tails))} records"
    if not agreed(plan, dry_run=dry_run, yes=yes):
        return
    rewind(config.checkpoint, checkpoint, tails)
    talk(f"checkpoint {checkpoint} is the newest now; start the pipeline: "
         f"catchwater pipeline run {file}")  # fmt: skip


def _to_replay(checkpoint: "Checkpoint", tails: "Mapping[tuple[str, int], PartitionTail]") -> int:
    """Records between the checkpoint and the end of what the log holds of its input."""
    return sum(
        max(0, tails[topic, int(partition)].high_watermark - offset)
        for topic, partitions in checkpoint.end.needed.items()
        for partition, offset in partitions.items()
        if (topic, int(partition)) in tails
    )
