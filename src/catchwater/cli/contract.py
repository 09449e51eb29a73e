"""`catchwater contract …`: what a restore of a checkpoint needs, and whether it is there."""

from collections.abc import Sequence
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
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.recovery.contract import Contract

app = noun()

Checkpoint = Annotated[
    int | None, typer.Option("--checkpoint", metavar="N", help="The epoch; otherwise the newest.")
]


class NoContract(CatchwaterError):
    """The pipeline has no contract, or none of the checkpoint asked for."""


@app.callback()
def contract() -> None:
    """See what a restore would need, and whether it would succeed."""


@app.command()
def show(file: PipelineFile, checkpoint: Checkpoint = None, as_json: AsJson = False) -> None:
    """Show the contract of a checkpoint, as it was written."""
    from catchwater.cli.pipeline_file import load_here
    from catchwater.recovery.contract import load_contracts

    chosen = _choose(load_contracts(load_here(file).checkpoint), checkpoint)
    if as_json:
        print_json(chosen)
        return
    restore = chosen.restore
    budget = "" if chosen.max_restore_s is None else f" of {chosen.max_restore_s:.0f} s"
    print_table(
        ["contract", f"{chosen.pipeline}, checkpoint {chosen.epoch}"],
        [
            *(("function", f"{each.name} v{each.version}") for each in chosen.functions),
            ("replay", f"{spaced(chosen.replay_records)} records, {_size(chosen.replay_bytes)}"),
            ("state", _size(chosen.state.bytes)),
            ("restore", f"{restore.seconds:.1f} s ({restore.low_s:.1f} to {restore.high_s:.1f})"
                        f"{budget}, by {restore.samples} measured restores"),
            ("retention needed", f"{chosen.retention.ms / 3_600_000:.1f} h"),
            ("pin", chosen.retention.pin),
            *((f"sink {name}", f"{spaced(sink.records)} records of this epoch in {sink.topic}")
              for name, sink in chosen.sinks.items()),
        ],
    )  # fmt: skip


@app.command()
def check(file: PipelineFile, checkpoint: Checkpoint = None, as_json: AsJson = False) -> None:
    """Compare a contract with what log and sinks hold now.

    Exit 0, 3 (warns) or 4 (fails).
    """
    from catchwater.cli import sink
    from catchwater.cli.pipeline_file import open_here
    from catchwater.recovery import contract as terms
    from catchwater.recovery.contract import load_contracts

    pipeline = open_here(file)
    chosen = _choose(load_contracts(pipeline.config.checkpoint), checkpoint)
    topics = sorted({position.topic for position in chosen.inputs})
    state = pipeline.log_state(topics, sink.last_epochs(file))
    findings = terms.check(chosen, state)
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        print_table(["verdict", "of", "why"], [(f.verdict, f.subject, f.message) for f in findings])
    leave(finding.verdict for finding in findings)


def _choose(contracts: "Sequence[Contract]", epoch: int | None) -> "Contract":
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


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
