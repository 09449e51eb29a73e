"""`catchwater contract …`: what a restore of a checkpoint needs, and whether it is there."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import (
    AsJson,
    PipelineFile,
    leave,
    noun,
    print_json,
    print_table,
    spaced,
)

if TYPE_CHECKING:
    from catchwater.recovery.estimate import Estimate

app = noun()

Checkpoint = Annotated[
    int | None, typer.Option("--checkpoint", metavar="N", help="The epoch; otherwise the newest.")
]


@app.callback()
def contract() -> None:
    """See what a restore would need, and whether it would succeed."""


@app.command()
def show(file: PipelineFile, checkpoint: Checkpoint = None, as_json: AsJson = False) -> None:
    """Show the contract of a checkpoint, as it was written.

    Exit 0, 3 (a budget may be breached, or a restore never catches up) or 4 (one is breached).
    """
    from catchwater.cli.pipeline_file import load_here
    from catchwater.recovery.contract import budgets, load_contract

    chosen = load_contract(load_here(file).checkpoint, checkpoint)
    found = budgets(chosen)
    if as_json:
        print_json(chosen)
        leave(each.verdict for each in found)
    print_table(
        ["contract", f"{chosen.pipeline}, checkpoint {chosen.epoch}"],
        [
            *(("function", f"{each.name} v{each.version}") for each in chosen.functions),
            ("replay", f"{spaced(chosen.replay_records)} records, {_size(chosen.replay_bytes)}"),
            ("state", _size(chosen.state.bytes)),
            *((each.subject, each.message) for each in found),
            *_timelines(chosen.restore),
            ("retention needed", _hours(chosen.retention.ms)),
            ("pin", chosen.retention.pin),
            *((f"sink {name}", f"{spaced(sink.records)} records of this epoch in {sink.topic}")
              for name, sink in chosen.sinks.items()),
        ],
    )  # fmt: skip
    leave(each.verdict for each in found)


def _timelines(restore: "Estimate") -> list[tuple[str, str]]:
    """What the estimate is made of."""
    rows = [("measured restores", str(restore.samples))]
    before, after = restore.infrastructure, restore.application
    if before is None or after is None:  # written by an earlier version
        return rows
    replay = "never ends"
    if after.replay_s is not None and after.replay_records is not None:
        replay = f"{after.replay_s:.1f} s for {spaced(after.replay_records)} records"
    return [
        ("infrastructure", f"detection {before.detection_s:.1f} s, scheduling "
                           f"{before.scheduling_s:.1f} s, session {before.session_s:.1f} s"),
        ("application", f"state {after.state_s:.1f} s, replay {replay}"),
        ("input", f"{restore.input_per_s:.0f} records/s"),
        ("capacity", f"{restore.capacity_per_s:.0f} records/s ({_BASIS[restore.capacity]})"),
        *rows,
    ]  # fmt: skip


_BASIS = {
    "restores": "by measured restores",
    "epochs": "by the last epochs",
    "assumed": "assumed: nothing was measured yet",
}


def _hours(kept_ms: int) -> str:
    return "for ever" if kept_ms < 0 else f"{kept_ms / 3_600_000:.1f} h"


@app.command()
def check(file: PipelineFile, checkpoint: Checkpoint = None, as_json: AsJson = False) -> None:
    """Compare a contract with what log and sinks hold now.

    Exit 0, 3 (warns) or 4 (fails).
    """
    from catchwater.cli import sink
    from catchwater.cli.pipeline_file import open_here
    from catchwater.recovery import contract as terms

    pipeline = open_here(file)
    chosen = terms.load_contract(pipeline.config.checkpoint, checkpoint)
    topics = sorted({position.topic for position in chosen.inputs})
    state = pipeline.log_state(topics, sink.last_epochs(file))
    findings = terms.check(chosen, state)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(["verdict", "of", "why"], [(f.verdict, f.subject, f.message) for f in findings])
    leave(finding.verdict for finding in findings)


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
