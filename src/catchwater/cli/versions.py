"""`catchwater pipeline upgrade|rollback|versions`: to another version of a function, and back."""

from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import (
    AsJson,
    DryRun,
    PipelineFile,
    Yes,
    agreed,
    log_to_stderr,
    print_json,
    print_table,
    progress,
    talk,
)

if TYPE_CHECKING:
    from pathlib import Path

    from catchwater.pipeline.opened import OpenPipeline


def versions(file: PipelineFile, as_json: AsJson = False) -> None:
    """List the versions that have run, and which runs now."""
    from catchwater.cli.console import load_here
    from catchwater.pipeline.run.versions import load
    from catchwater.recovery.ledger import shown

    checkpoint = load_here(file).checkpoint
    ledger = load(checkpoint)
    rows = [
        {
            "function": each.function,
            "version": each.version,
            "from_epoch": each.from_epoch,
            "code": (each.part or each.code)[:12],
            "savepoint": each.savepoint,
            "is": "rolled back"
            if each in ledger.withdrawn
            else "runs"
            if each == ledger.current(each.function)
            else "was",
        }
        for each in [*ledger.history, *ledger.withdrawn]
    ]
    if as_json:
        print_json({"generation": ledger.generation, "versions": rows})
    elif rows:
        print_table(list(rows[0]), [list(row.values()) for row in rows])
    else:
        talk(f"nothing has run on {shown(checkpoint)} yet")


def upgrade(
    file: PipelineFile,
    to: Annotated[int, typer.Option("--to", metavar="VERSION", help="The file's version now.")],
    warm: Annotated[
        bool, typer.Option("--warm", help="Run beside the old version, compare, take over.")
    ] = False,
    same: Annotated[
        bool, typer.Option("--same", help="With --warm: give up if an output differs (exit 4).")
    ] = False,
    alter: Annotated[
        bool, typer.Option("--alter", help="Add columns to tables that lack some of the outputs'.")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", hidden=True)] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Upgrade to the version of the function that the file names.

    It takes over the state of the version before. The state's schema, every stored record and the
    sinks' targets are tried first; a savepoint is taken, to which `rollback` goes back. Exit 5,
    naming the field or the key, if the state does not fit; exit 2 if a target does not. With --warm
    this process becomes the new version, and keeps running after it has taken over.
    """
    from catchwater.cli.console import open_here
    from catchwater.pipeline.change.upgrade import alterations, look, upgrade

    if same and not warm:
        raise typer.BadParameter("--same compares what --warm has put out; give both.")
    pipeline = open_here(file).with_log()
    plan = ", ".join(map(str, look(pipeline, to, alter=alter)))
    first = "run beside" if warm else "stop"
    added = [s for differs in alterations(pipeline).values() for s in differs.alter]
    altered = f"{'; '.join(added)}, " if added else ""
    steps = f"{first} the pipeline, {altered}take a savepoint, and upgrade {plan}"
    if not agreed(steps, dry_run=dry_run, yes=yes):
        return
    if warm:
        _warm(pipeline, to, alter=alter, same=same, quick=quick, as_json=as_json)
        return
    with progress("copying") as report:
        done = upgrade(pipeline, to, report, alter=alter)
    if as_json:
        print_json({"to": to, "epoch": done.epoch, "keys": done.keys, "savepoint": done.savepoint})
        return
    talk(f"upgraded {plan} after epoch {done.epoch}; {done.keys} records fit; "
         f"the savepoint before it is {done.savepoint}")  # fmt: skip
    talk(f"start it: catchwater pipeline run {file}; go back: catchwater pipeline rollback {file}")


def _warm(
    pipeline: "OpenPipeline", to: int, *, alter: bool, same: bool, quick: bool, as_json: bool
) -> None:
    from contextlib import ExitStack

    import msgspec

    from catchwater.pipeline.change.warm import Comparison, Conductor, prepare
    from catchwater.pipeline.run.driver import run_pipeline
    from catchwater.recovery.checkpoint import last_commit
    from catchwater.recovery.folder import hold
    from catchwater.recovery.handover import alone, current

    log_to_stderr()

    def over(found: Comparison) -> None:
        if as_json:
            print_json({"to": to, **msgspec.structs.asdict(found)})
        talk(
            f"version {to} leads: {found.epochs} epochs compared, {found.same} rows the same, "
            f"{found.only_old} only the old version's, {found.only_new} only the new one's"
        )

    leader = pipeline.config.checkpoint
    with (
        alone(leader, pipeline.clock),
        hold(leader, last_commit(leader), pipeline.clock),
        ExitStack() as behind,
    ):
        with progress("copying") as report:
            config = prepare(pipeline, to, report, alter=alter)
        behind.callback(_tell_who_leads, leader, config.checkpoint)
        conductor = Conductor(pipeline, config.checkpoint, over, same=same)
        run_pipeline(config, quick=quick, beside=conductor, clock=pipeline.clock)
    if current(leader) == leader:  # asked to stop before it was anybody's turn
        raise typer.Exit(1)


def _tell_who_leads(leader: "Path", shadow: "Path") -> None:
    """What became of an attempt that ends here, before the new version leads."""
    from catchwater.recovery import handover
    from catchwater.recovery.folder import holder

    asked = handover.fenced_by(leader)
    if asked is None or (holder(leader) is None and handover.successor_of(leader) is None):
        talk("nothing was taken over, and the old version is as it was; what this one has left may "
             f"be deleted: {shadow}")  # fmt: skip
    elif asked == shadow and handover.successor_of(leader) is None:
        talk(f"the old version is about to hand over to {shadow}: catchwater pipeline run FILE "
             "goes on there")  # fmt: skip


def rollback(
    file: PipelineFile, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Go back to the version before the last upgrade.

    State is what it was then, outputs since are withdrawn, and their input is replayed.
    Exit 5, with nothing changed, if the savepoint, the old code or the log's history is gone, or a
    sink cannot take back all that it has, naming it.
    """
    from catchwater.cli.console import open_here
    from catchwater.config import CatchwaterError
    from catchwater.pipeline.change.rollback import look, roll_back
    from catchwater.recovery.handover import restore_under_way

    pipeline = open_here(file).with_log()
    way = look(pipeline)
    back = ", ".join(f"{each.function} to version {each.version}" for each in way.back)
    plan = f"{back}, as after epoch {way.savepoint.epoch}"
    if way.last > way.savepoint.epoch:
        plan += f": withdraw epochs {way.savepoint.epoch + 1} to {way.last} and replay from there"
    if not agreed(f"stop the pipeline and roll back {plan}", dry_run=dry_run, yes=yes):
        return
    try:
        with progress("restoring") as report:
            generation = roll_back(pipeline, way, report)
    except CatchwaterError:
        if restore_under_way(pipeline.config.checkpoint) is not None:
            talk("the rollback is not complete, and nothing runs before it is: type it again when "
                 "what follows is mended")  # fmt: skip
        raise
    if as_json:
        print_json({"epoch": way.savepoint.epoch, "generation": generation,
                    "versions": {each.function: each.version for each in way.back}})  # fmt: skip
        return
    talk(f"rolled back {back}, to epoch {way.savepoint.epoch}; start it: catchwater pipeline run "
         f"{file}")  # fmt: skip
