"""`catchwater recovery …`: what a restore would do, and doing it. Nothing is ever deleted."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import chain
from itertools import count as numbers
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import (
    AsJson,
    DryRun,
    PipelineFile,
    Yes,
    agreed,
    as_json_line,
    noun,
    print_json,
    print_table,
    progress,
    spaced,
    talk,
)

if TYPE_CHECKING:
    from catchwater.pipeline.change.reset import ResetPlan
    from catchwater.pipeline.run.config import PipelineConfig
    from catchwater.recovery.checkpoint import Checkpoint
    from catchwater.recovery.contract import PartitionTail
    from catchwater.recovery.explain import Account
    from catchwater.recovery.intact import Look
    from catchwater.recovery.reprocess import Letters
    from catchwater.recovery.savepoint.store import Shelf
    from catchwater.sinks.config import SinkConfig

app = noun()

_UNASKED = "the log could not be asked"


@app.callback()
def recovery() -> None:
    """Explain and carry out a restore."""


@app.command()
def explain(file: PipelineFile, as_json: AsJson = False) -> None:
    """Say what is done and what was under way, and list every checkpoint with what a restore takes.

    Inputs processed, outputs in each sink, state that is durable, and the epoch in flight: wherever
    the last process was when it died. Of each checkpoint: whether its files are whole and the log
    still holds what would be replayed; if not, which file is damaged or what is missing.
    """
    from catchwater.cli.console import look_here
    from catchwater.config import CatchwaterError
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.recovery.contract import spelled
    from catchwater.recovery.ledger import shown

    config, found = look_here(file)
    rows: dict[int, Sequence[object]] = {
        epoch: (epoch, False, None, None, None, None, why) for epoch, why in found.broken.items()
    }
    pipeline = OpenPipeline(config)
    tails, unasked = {}, None
    sinks: dict[str, int | str | None] = dict.fromkeys(config.every_sink, _UNASKED)
    try:
        topics = {topic for each in found.whole for topic in each.end.needed}
        tails = pipeline.tails(topics) if topics else {}
    except CatchwaterError as error:
        unasked = error
    if unasked is None and (topics or found.planned):
        with suppress(CatchwaterError):
            sinks = pipeline.sink_epochs()
    for each in found.whole:
        rows[each.epoch] = _row(found, each, None if unasked else tails)
    for problem in found.problems:
        if problem not in found.broken.values():
            talk(problem)
    if found.contract is not None and found.contract.restore.missing_per_s:
        talk(f"a restore takes for ever: {spelled(found.contract.restore)}")
    times = ["restore_s", "infrastructure_s", "application_s"]
    columns = ["checkpoint", "restorable", "replay_records", *times, "why_not"]
    listed = [rows[epoch] for epoch in sorted(rows)]
    if as_json:
        checkpoints = [dict(zip(columns, row, strict=True)) for row in listed]
        print_json({"now": _account(config, found, sinks), "checkpoints": checkpoints})
    elif rows or found.planned:
        print_table(["now", ""], _account(config, found, sinks).words)
        typer.echo()
        print_table(columns, listed)
    else:
        talk(f"there is no checkpoint in {shown(config.checkpoint)} yet")
    if unasked:
        raise unasked


def _row(
    found: "Look", checkpoint: "Checkpoint", tails: "Mapping[tuple[str, int], PartitionTail] | None"
) -> Sequence[object]:
    """A whole checkpoint's; None: the log could not be asked."""
    if tails is None:
        return (checkpoint.epoch, None, None, None, None, None, _UNASKED)
    why, replay_records = _why_not(checkpoint, tails), _to_replay(checkpoint, tails)
    took = _takes(found, checkpoint.epoch, replay_records)
    return (checkpoint.epoch, not why, replay_records, *took, why)


def _account(
    config: "PipelineConfig", found: "Look", sinks: "Mapping[str, int | str | None]"
) -> "Account":
    """What is done and what is under way, as far as the files can be read."""
    from catchwater.recovery import handover
    from catchwater.recovery.explain import account
    from catchwater.recovery.ledger import Ledger, LedgerDamaged

    ledger = Ledger(found.folder)
    try:
        beginning = ledger.beginning()
        under_way = handover.in_words(found.folder)
    except LedgerDamaged as damage:  # which is among the problems that were shown
        beginning, under_way = None, str(damage)
    unmarked = [name for name, each in config.every_sink.items() if not each.exactly_once]
    return account(
        found, beginning, sinks, unmarked=unmarked, recorded=ledger.recorded_epochs(),
        under_way=under_way,
    )  # fmt: skip


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
    checkpoint: Annotated[
        int | None,
        typer.Option("--checkpoint", metavar="N", help="One that recovery explain lists."),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="Instead: last, -2 for two before it, or an ISO time: the newest up to then.",
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Go back to an older checkpoint.

    Later epochs are moved aside, not deleted, and replayed with the same ends.
    The pipeline must not be running. Exit 5 if the log no longer holds what would be replayed.
    """
    from catchwater.cli.console import open_here
    from catchwater.pipeline.run.versions import check_reach
    from catchwater.recovery.checkpoint import find, find_by_name
    from catchwater.recovery.contract import check_covered
    from catchwater.recovery.ledger import shown
    from catchwater.recovery.pins import refuse_lost
    from catchwater.recovery.rewind import rewind

    pipeline = open_here(file)
    config = pipeline.config
    if (checkpoint is None) == (to is None):
        raise typer.BadParameter("Name the epoch with --checkpoint, or a place with --to.")
    folder = config.checkpoint
    chosen = find_by_name(folder, to) if to is not None else find(folder, int(checkpoint or 0))
    tails = pipeline.tails(chosen.end.needed)
    check_covered(chosen.end, tails)
    check_reach(config.checkpoint, chosen.epoch)
    if pipeline.control is not None:  # another Kafka has no pins that could be lost
        refuse_lost(pipeline.control, chosen.end, tails)
    plan = f"restore checkpoint {chosen.epoch} of {shown(config.checkpoint)} and replay "
    plan += f"{spaced(_to_replay(chosen, tails))} records"
    if not agreed(plan, dry_run=dry_run, yes=yes):
        return
    rewind(config.checkpoint, chosen.epoch, tails)
    talk(f"checkpoint {chosen.epoch} is the newest now; start the pipeline: "
         f"catchwater pipeline run {file}")  # fmt: skip


@app.command()
def reset(
    file: PipelineFile,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="earliest, latest, an offset in every partition, an ISO time, or offsets as JSON.",
        ),
    ] = None,
    checkpoint: Annotated[
        int | None,
        typer.Option("--checkpoint", metavar="N", help="Instead: where this checkpoint had read."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--savepoint", metavar="NAME", help="Otherwise PIPELINE-EPOCH-before-reset."),
    ] = None,
    no_savepoint: Annotated[
        bool, typer.Option("--no-savepoint", help="Give the state up for good: take none before.")
    ] = False,
    execute: Annotated[
        bool, typer.Option("--execute", "--yes", "-y", help="Do it: otherwise it is only shown.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Begin anew with empty state at a place of the input; without --execute only show what it is.

    Shows what is read again and what is never read, which state is given up, and what becomes of
    each sink's outputs: they stay. A savepoint is taken before. To keep the state, go back to a
    checkpoint: recovery restore. The pipeline must not be running. Exit 5 if the log does not hold
    the place, naming every range that it lacks.
    """
    from catchwater.cli.console import open_here
    from catchwater.pipeline.change.reset import look
    from catchwater.pipeline.change.reset import reset as carry_out
    from catchwater.recovery.folder import key_part

    if (checkpoint is None) == (to is None):
        raise typer.BadParameter("Name a place with --to, or a checkpoint with --checkpoint.")
    pipeline = open_here(file).with_log()
    plan = look(pipeline, to, checkpoint)
    doing, url = execute and not dry_run, ""
    if not as_json:
        _show_reset(plan)
    if doing:
        # Where a checkpoint had read nobody knows any more once it has been moved aside.
        place = to if to is not None else as_json_line(plan.place.offsets)
        command = f"catchwater recovery reset {file} --to {shlex.quote(place)} --execute"
        save = None
        if not no_savepoint:
            shelf = pipeline.shelf()
            save = (
                name
                or _free_name(
                    shelf, f"{key_part(pipeline.name).lstrip('_-')}-{plan.epoch}-before-reset"
                ),
                shelf,
            )
        agreed(f"reset epoch {plan.epoch} to {place}", dry_run=False, yes=True)
        with progress("copying") as report:
            url = carry_out(pipeline, plan, command, save, report)
    if as_json:
        print_json({
            "epoch": plan.epoch, "done": doing, "savepoint": url or None,
            "partitions": [
                {**asdict(move), "again": move.again, "skipped": move.skipped}
                for move in plan.moves
            ],
            "again": plan.again, "skipped": plan.skipped,
            "state": {"keys": plan.keys, "bytes": plan.state_bytes}, "sinks": plan.sinks,
        })  # fmt: skip
    elif doing:
        back = f"; the state before is {url}" if url else ""
        talk(f"reset{back}; start the pipeline: catchwater pipeline run {file}")
    else:
        talk("nothing was changed; --execute does it")


def _show_reset(plan: "ResetPlan") -> None:
    """Partition by partition, then state and sinks."""
    rows = [
        (f"{each.topic}-{each.partition}", each.log_start, each.end, each.at, each.to, each.again,
         each.skipped)
        for each in plan.moves
    ]  # fmt: skip
    print_table(["partition", "log_start", "log_end", "read_to", "to", "again", "skipped"], rows)
    typer.echo()
    state = f"{spaced(plan.keys)} keys, {spaced(plan.state_bytes)} bytes: given up, it begins empty"
    lines = [("state", state), *((f"sink {name}", what) for name, what in plan.sinks.items())]
    print_table(["after it", ""], lines)


def _free_name(shelf: "Shelf", name: str) -> str:
    """The name, numbered where it is taken."""
    numbered = (f"{name}-{number}" for number in numbers(2))
    return next(each for each in chain([name], numbered) if not shelf.exists(each))


@app.command()
def reprocess(
    file: PipelineFile,
    skip_gone: Annotated[
        bool, typer.Option("--skip-gone", help="Also if the log has deleted some of them.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters again, after a fix: each goes once to the partition it came from.

    The pipeline may run meanwhile. If it is cut short, the same command goes on; letters that were
    sent before are not sent again. A range of the input is run again by `pipeline backfill`.
    Exit 5 if the log has deleted letters that were not sent yet.
    """
    from contextlib import closing

    from catchwater.cli.console import declared_here, open_here
    from catchwater.clock import SYSTEM
    from catchwater.recovery.folder import lock
    from catchwater.recovery.ledger import refuse_url
    from catchwater.recovery.reprocess import Reprocessing
    from catchwater.wire.client import Client

    pipeline = open_here(file)
    options = pipeline.options
    topic = _topic_of_letters(pipeline.config.dead_letter, options.bootstrap)
    folder = declared_here(file).checkpoint
    refuse_url(folder, "Sending dead letters again")
    client = Client(options.bootstrap, clock=SYSTEM, security=options.security)
    with closing(client), lock(folder, name="reprocess.lock", wait_s=0):
        work = Reprocessing(client, folder, topic, options.topics)
        found = work.find(skip_gone=skip_gone)
        if not as_json:
            _show_letters(found)
        targets = ", ".join(f"{count} to {topic}" for topic, count in found.by_topic.items())
        plan = f"send {spaced(len(found.letters))} dead letters again: {targets or 'none'}"
        sent = 0
        if found.letters and agreed(plan, dry_run=dry_run, yes=yes):
            sent = work.send(found)
    if as_json:
        print_json({
            "found": len(found.letters), "sent": sent, "skipped": found.skipped,
            "by_topic": found.by_topic, "by_error": found.by_error,
        })  # fmt: skip
    else:
        talk(f"sent {spaced(sent)} of {spaced(len(found.letters))}")


def _topic_of_letters(letters: "SinkConfig | None", bootstrap: str) -> str:
    """Their topic, at the brokers of the input."""
    from catchwater.recovery.reprocess import NoDeadLetters

    if letters is not None and letters.kind == "log":
        return str(letters.options.topic)
    if letters is not None and letters.kind == "kafka":
        there = letters.options.kafka.get("kafka.bootstrap.servers") or bootstrap
        if {*there.split(",")} == {*bootstrap.split(",")}:
            return str(letters.options.topic)
        has = "them at other brokers"
    else:
        has = "none" if letters is None else f"them in a {letters.kind} sink"
    raise NoDeadLetters(
        f"Dead letters are sent again from a topic at the brokers of the input; it has {has}.",
        hint="A range of the input is run again by: catchwater pipeline backfill FILE.",
    )


def _show_letters(found: "Letters") -> None:
    """What there is, by its error, and what is not sent."""
    if found.letters:
        rows = [(count, error) for error, count in found.by_error.most_common(20)]
        print_table(["letters", "error"], rows)
    for why, count in found.skipped.items():
        talk(f"{spaced(count)} are not sent: {why}")


def _to_replay(checkpoint: "Checkpoint", tails: "Mapping[tuple[str, int], PartitionTail]") -> int:
    """Records between the checkpoint and the end of what the log holds of its input."""
    return sum(
        max(0, tails[topic, int(partition)].high_watermark - offset)
        for topic, partitions in checkpoint.end.needed.items()
        for partition, offset in partitions.items()
        if (topic, int(partition)) in tails
    )
