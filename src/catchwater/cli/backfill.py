"""`catchwater pipeline backfill|rebuild`: run the pipeline's functions over past input again."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchwater.cli.console import (
    AsJson,
    DryRun,
    PipelineFile,
    Quick,
    Yes,
    load_here,
    log_to_stderr,
    print_json,
    print_table,
    spaced,
    supervised,
    talk,
)
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.pipeline.run.backfill import Bounds
    from catchwater.pipeline.run.config import PipelineConfig


class CutShort(CatchwaterError):
    """A backfill or a rebuild was stopped before it had read everything."""


def backfill(
    file: PipelineFile,
    label: Annotated[
        str, typer.Option("--label", help="Names this backfill, to continue it later.")
    ],
    since: Annotated[
        str,
        typer.Option(
            "--from", metavar="PLACE", help="earliest, table, an ISO time, or offsets as JSON."
        ),
    ] = "earliest",
    until: Annotated[
        str, typer.Option("--to", metavar="PLACE", help="latest, an ISO time, or offsets as JSON.")
    ] = "latest",
    quick: Quick = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Run the functions over a range of past input.

    The pipeline that runs is not disturbed. State begins empty. Each output is written once to the
    file's sinks; name other targets for them in the environment: CATCHWATER_SINK__NAME__TABLE=...
    The first start fixes the range. If a backfill is interrupted, the same command continues it; it
    says when the backfill is done. What the log has deleted is read from the topic's table; --from
    table begins where that does.
    """
    from catchwater.clock import SYSTEM
    from catchwater.pipeline.run.backfill import (
        backfill_of,
        begin,
        begun,
        check_apart,
        progress,
        resolve,
    )
    from catchwater.pipeline.run.config import load

    log_to_stderr()
    config = backfill_of(load_here(file), label)
    check_apart(config, load(file, {}))
    bounds = begun(config.checkpoint)
    if bounds is None:
        bounds = resolve(config, since, until, SYSTEM)
        _show(config, bounds)
        if dry_run:
            return
        if not yes:
            question = f"Run {config.name} over {spaced(bounds.records)} records?"
            typer.confirm(question, abort=True, err=True)
        begin(config, _pin(config, bounds))
    done, records = progress(config.checkpoint)
    if done < records and not dry_run:
        flags = ["--backfill", label, *(["--quick"] if quick else [])]
        supervised(file, config, flags)
        done, records = progress(config.checkpoint)
    if done == records:
        _release(config)
    _tell(config, done, records, as_json=as_json)
    if not dry_run:
        _check_whole(config)


def rebuild(
    file: PipelineFile,
    label: Annotated[
        str, typer.Option("--label", help="Names this rebuild, to continue it later.")
    ],
    quick: Quick = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild the pipeline's tables, or its key-value store over HTTP, from all of its input.

    The pipeline keeps running meanwhile. When the rebuild has caught up, the pipeline is stopped,
    each table's rows are exchanged in one transaction, and a store gets the newest record of every
    key; then start it again. Readers never see half a table, and of a store one record after the
    other. If a rebuild is interrupted, the same command continues it.
    """
    from catchwater.pipeline.change.rebuild import extend, take_place
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.pipeline.run.backfill import backfill_of, begun, progress
    from catchwater.pipeline.supervise import halt
    from catchwater.recovery.folder import lock
    from catchwater.recovery.ledger import refuse_url

    log_to_stderr()
    live = load_here(file)
    refuse_url(live.checkpoint, "A rebuild")
    if live.checkpoint.name == label and begun(live.checkpoint):
        _release(backfill_of(live, label))  # an interrupted rebuild may have left it
        talk(f"{label} has taken the pipeline's place already: {live.checkpoint}.")
        return
    if not _begun_or_asked(live, label, dry_run=dry_run, yes=yes):
        return
    config = backfill_of(live, label)
    flags = ["--backfill", label, *(["--quick"] if quick else [])]
    bounds = begun(config.checkpoint)
    reads = bounds is not None and not bounds.taking
    done, records = progress(config.checkpoint)
    if reads and done < records:
        supervised(file, config, flags)
        _check_whole(config)
    halt(live.checkpoint)
    with lock(live.checkpoint):
        if reads and extend(config):
            supervised(file, config, flags)
            _check_whole(config)
        rows = take_place(OpenPipeline(live).with_log(), config)
    _release(config)
    if as_json:
        summary = {"rebuilt": config.name, "rows": rows, "checkpoint": str(config.checkpoint)}
        print_json(summary)
    else:
        talk(f"{config.name} is in place; start the pipeline: catchwater pipeline run {file}")


def _begun_or_asked(live: "PipelineConfig", label: str, *, dry_run: bool, yes: bool) -> bool:
    """Whether to go on: the rebuild has begun before, or the user agrees to begin it."""
    import msgspec

    from catchwater.clock import SYSTEM
    from catchwater.pipeline.change.rebuild import all_of_it, tables_of
    from catchwater.pipeline.run.backfill import backfill_of, begin, begun

    config = backfill_of(live, label)
    if begun(config.checkpoint):
        return not dry_run
    tables = tables_of(live, label)
    bounds = msgspec.structs.replace(all_of_it(config, SYSTEM), tables=tables)
    _show(config, bounds)
    if dry_run:
        return False
    if not yes:
        question = f"Rebuild {', '.join(tables)}, and stop the pipeline for the exchange?"
        typer.confirm(question, abort=True, err=True)
    begin(config, _pin(config, bounds))
    return True


def _check_whole(config: "PipelineConfig") -> None:
    """Raise `CutShort` unless all was read: a driver that was stopped also ends with 0."""
    from catchwater.pipeline.run.backfill import progress

    done, records = progress(config.checkpoint)
    if done < records:
        raise CutShort(
            f"{config.name} was stopped when it had read {spaced(done)} of {spaced(records)} "
            "records.",
            hint="Type the same command again: it goes on from there.",
        )


def _show(config: "PipelineConfig", bounds: "Bounds") -> None:
    rows = [
        {"partition": f"{topic}-{number}", "from": first, "to": bounds.end[topic][number]}
        for topic, partitions in bounds.start.items()
        for number, first in partitions.items()
    ]
    talk(f"{config.name}, checkpoint {config.checkpoint}:")
    for row in rows:
        talk(f"  {row['partition']} offsets {row['from']} to {row['to']}")
    for (topic, number), (first, stop) in bounds.from_tables.items():
        talk(f"  {topic}-{number} offsets {first} to {stop} from the topic's table")
    for sink in config.sinks.values():
        talk(f"  into {sink.kind} {sink.place}")


def _pin(config: "PipelineConfig", bounds: "Bounds") -> "Bounds":
    """Pin the range until the backfill is done (`backfill.hold`); another Kafka has no pins."""
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.pipeline.run.backfill import hold

    control = OpenPipeline(config).control
    return bounds if control is None else hold(config, bounds, control)


def _release(config: "PipelineConfig") -> None:
    """Release the pin of the range."""
    from catchwater.pipeline.opened import OpenPipeline

    if (control := OpenPipeline(config).control) is not None:
        for pin in control.pins():
            if pin["owner"] == config.name:
                control.release_pin(str(pin["id"]))


def _tell(config: "PipelineConfig", done: int, records: int, *, as_json: bool) -> None:
    summary: dict[str, Any] = {
        "backfill": config.name,
        "records": records,
        "read": done,
        "done": done == records,
        "checkpoint": str(config.checkpoint),
    }
    if as_json:
        print_json(summary)
    else:
        print_table(["backfill", str(config.name)], list(summary.items())[1:])
