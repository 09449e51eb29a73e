"""`catchwater pipeline …`: run a pipeline's file, and inspect a pipeline by its checkpoint."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from catchwater.cli import versions as changes
from catchwater.cli.backfill import backfill, rebuild
from catchwater.cli.console import (
    AsJson,
    DryRun,
    PipelineFile,
    Quick,
    Yes,
    as_json_line,
    leave,
    load_here,
    log_to_stderr,
    noun,
    print_finding,
    print_json,
    print_table,
    supervised,
    talk,
)
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.pipeline.run.config import PipelineConfig

app = noun()


@app.callback()
def pipeline() -> None:
    """Run, inspect, upgrade, roll back and rebuild a pipeline."""


@app.command()
def run(
    file: PipelineFile,
    available_now: Annotated[
        bool, typer.Option("--available-now", help="End when what is in the log now is done.")
    ] = False,
    quick: Quick = False,
    no_supervise: Annotated[
        bool, typer.Option("--no-supervise", help="Run in this process; end when it fails.")
    ] = False,
    label: Annotated[str | None, typer.Option("--backfill", hidden=True)] = None,
    stand_by: Annotated[bool, typer.Option("--stand-by", hidden=True)] = False,
    python: Annotated[str | None, typer.Option("--python", hidden=True)] = None,
) -> None:
    """Run a pipeline until SIGTERM or Ctrl-C.

    It is started again when it fails; an epoch that was interrupted runs again.
    """
    log_to_stderr()
    config = load_here(file)
    if label is not None:
        from catchwater.pipeline.run.backfill import backfill_of

        config = backfill_of(config, label)
    if stand_by or no_supervise:
        _drive(config, available_now=available_now, quick=quick, stand_by=stand_by, python=python)
        return
    flags = [f for f, on in (("--available-now", available_now), ("--quick", quick)) if on]
    supervised(file, config, flags)


def _drive(
    config: "PipelineConfig",
    *,
    available_now: bool,
    quick: bool,
    stand_by: bool,
    python: str | None,
) -> None:
    """Run the pipeline in this process, with a supervisor at standard input if it stands by."""
    from catchwater.pipeline.run.config import AVAILABLE_NOW
    from catchwater.pipeline.run.driver import Turn, report, run_pipeline

    if available_now:
        config = replace(config, trigger=AVAILABLE_NOW)
    try:
        run_pipeline(config, quick=quick, turn=Turn() if stand_by else None, python=python)
    except CatchwaterError as error:
        report(config.checkpoint, error)
        if stand_by:  # the supervisor reports it
            raise typer.Exit(error.exit_code) from error
        raise


@app.command()
def stop(
    file: PipelineFile, yes: Yes = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Stop the pipeline after its epoch, and wait until it ends."""
    from catchwater.clock import SYSTEM
    from catchwater.pipeline.supervise import halt, running
    from catchwater.recovery.ledger import shown
    from catchwater.recovery.remote import works_elsewhere

    folder = load_here(file).checkpoint
    process = running(folder)
    if process and not dry_run and (yes or typer.confirm(f"Stop process {process}?", err=True)):
        stopped = halt(folder) is not None
    else:
        stopped = False
    if as_json:
        print_json({"process": process, "stopped": stopped})
    elif process is None:
        elsewhere = works_elsewhere(folder, SYSTEM)
        if elsewhere is None:
            talk(f"Nothing works on {shown(folder)}.")
        else:
            talk(f"Nothing here works on {shown(folder)}; {elsewhere} does, or has been lost.")
    else:
        talk(f"Process {process} {'has ended' if stopped else 'was left running'}.")


@app.command()
def plan(
    file: PipelineFile,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask neither brokers nor targets.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what would run, what each sink guarantees, and all that a start would fail on.

    Packages, topics, targets: they are asked and not changed. Exit 0, 3 (something did not answer)
    or 4 (a start would fail).
    """
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.pipeline.plan import ASK_S, plan_of, problems_of

    pipeline = OpenPipeline(load_here(file), timeout_s=ASK_S)
    found = plan_of(pipeline)
    problems = problems_of(pipeline, offline=offline)
    if as_json:
        print_json({**found, "problems": [each._asdict() for each in problems]})
        leave(each.verdict for each in problems)
    parts = [found.pop(name) for name in ("functions", "tables", "sinks")]
    print_table(["pipeline", str(file)], list(found.items()))
    for rows in filter(None, parts):
        typer.echo()
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    if problems:
        typer.echo()
    for each in problems:
        print_finding(each.verdict, each.what, each.message, each.hint)
    leave(each.verdict for each in problems)


@app.command()
def status(
    file: PipelineFile,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show it again every two seconds.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show how the pipeline is doing: what it has done, how far behind it is, where its time goes.

    Read from the files of its checkpoint, and from the log how far behind it is; the pipeline need
    not run, and the log need not answer. A file that is damaged or missing is named on stderr, and
    the rest is shown. Counts are of the epochs that are kept.

    Exit 0, 3 (the newest contract may breach a budget, or a restore never catches up) or 4 (it
    breaches one).
    """
    from catchwater.cli.console import look_here
    from catchwater.cli.status import page
    from catchwater.cli.status import watch as watching
    from catchwater.clock import SYSTEM
    from catchwater.pipeline.status import status_of

    def look() -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(status_of(*look_here(file), SYSTEM))
        return found

    def lines() -> list[str]:
        found = look()
        return [as_json_line(found)] if as_json else [*page(found, SYSTEM.now_ms()), ""]

    if watch:
        watching(lines)
    found = look()
    for problem in found["problems"]:
        talk(problem)
    if as_json:
        print_json(found)
    else:
        typer.echo("\n".join(page({**found, "problems": []}, SYSTEM.now_ms())))
    leave(each["verdict"] for each in (found["restore"] or {"budgets": []})["budgets"])


for command in (changes.upgrade, changes.rollback, changes.versions, backfill, rebuild):
    app.command()(command)
