"""`catchwater sink …`: verifies that a sink has each output once and unchanged, and repairs it."""

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from catchwater.cli.console import (
    FAILS,
    AsJson,
    DryRun,
    PipelineFile,
    Yes,
    agreed,
    noun,
    print_json,
    print_table,
    spaced,
    talk,
)
from catchwater.config import CatchwaterError, nearest

if TYPE_CHECKING:
    from catchwater.pipeline.run.config import PipelineConfig
    from catchwater.sinks.base import Sink
    from catchwater.sinks.reconcile import Finding, Report

app = noun()

_SHOWN = 20
_KINDS = ("missing", "doubled", "altered", "foreign")

Only = Annotated[
    str | None, typer.Option("--sink", metavar="NAME", help="This sink; otherwise all of them.")
]


class NoSuchSink(CatchwaterError):
    """The pipeline has no sink of this name."""

    exit_code = 2


@dataclass(frozen=True)
class _Opened:
    sinks: "Mapping[str, Sink]"
    committed: int | None
    """The newest epoch that is committed by the ledger."""
    checkpoint: Path
    unmarked: frozenset[str]
    """The sinks with at-least-once, which have no marks."""
    every: Collection[str]
    """The names of all sinks of the pipeline, also of those that are not opened."""


@app.callback()
def sink() -> None:
    """Compare what a sink holds with the pipeline's outputs, and repair it."""


@app.command()
def verify(file: PipelineFile, only: Only = None, as_json: AsJson = False) -> None:
    """Find every row that is missing, doubled, altered or foreign.

    Exit 0, or 4 if there is any.
    """
    from catchwater.sinks import reconcile

    with _opened(file, only) as opened:
        reports = {
            name: reconcile.verify(each, opened.committed) for name, each in opened.sinks.items()
        }
        _keep(opened, reports)
    if as_json:
        print_json([_report_fields(name, report) for name, report in reports.items()])
    else:
        _print(reports)
        _say_next(file, only, reports)
    wrong = any(report.findings or report.gone for report in reports.values())
    raise typer.Exit(FAILS if wrong else 0)


def _say_next(file: Path, only: str | None, reports: "Mapping[str, Report]") -> None:
    """The way from a difference to a sink without one."""
    if any(report.findings for report in reports.values()):
        quoted = shlex.quote(str(file))
        one = "" if only is None else f" --sink {shlex.quote(only)}"
        talk(f"next: catchwater pipeline stop {quoted}")
        talk(f"      catchwater sink repair {quoted}{one}")
        talk(f"      catchwater pipeline run {quoted}")


@app.command()
def repair(
    file: PipelineFile,
    only: Only = None,
    as_json: AsJson = False,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Repair what verify finds; the pipeline must be stopped.

    Exit 0, or 4 if something is left.
    """
    from catchwater.recovery.folder import lock
    from catchwater.sinks import reconcile

    left: dict[str, list[Finding]] = {}
    with _opened(file, only) as opened, lock(opened.checkpoint):
        for name, each in opened.sinks.items():
            report = reconcile.verify(each, opened.committed)
            if not report.findings and not report.gone:
                talk(f"{name}: nothing to repair in {spaced(report.rows)} rows")
                continue
            talk(f"{name}: {_summary(report.findings) or 'nothing'} of {spaced(report.rows)} rows")
            if report.gone:
                talk(_lost(name, report))
            if dry_run:
                talk("dry run: nothing was changed")
                continue
            if not yes:
                typer.confirm("Repair them?", abort=True, err=True)
            left[name] = reconcile.repair(each, report)
            repaired = len(report.findings) - len(left[name])
            talk(f"{name}: {spaced(repaired)} rows repaired")
            if left[name]:
                talk(f"{name}: {_summary(left[name])} rows cannot be repaired in this kind of sink")
    if as_json:
        print_json({name: [_row(finding) for finding in found] for name, found in left.items()})
    raise typer.Exit(FAILS if any(left.values()) else 0)


@app.command()
def moved(
    file: PipelineFile,
    name: Annotated[
        str, typer.Option("--sink", metavar="NAME", show_default=False, help="The one that moved.")
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Let the next epoch go to the target that the file names now.

    A start refuses a target that lacks epochs of this pipeline; this accepts it. What was written
    before stays where it is. The pipeline must be stopped.
    """
    from catchwater.cli.console import load_here
    from catchwater.pipeline.run.versions import Identity, rebind
    from catchwater.recovery.folder import lock
    from catchwater.sinks.config import target_of

    config = load_here(file)
    (sink,) = _with_only(config, name).every_sink.values()
    target = target_of(sink, config.folder)
    bound = Identity.read(config.checkpoint)
    was = bound.sinks.get(name) if bound else None
    if bound is None or was in (None, target):
        talk(f"nothing to do: no epoch binds {name} to another target than {target}")
        return
    plan = f"bind {name} to {target}; what was written to {was} stays there"
    if agreed(plan, dry_run=dry_run, yes=yes):
        with lock(config.checkpoint):
            rebind(config.checkpoint, bound.with_sink(name, target))
        talk(f"{name} goes on at {target}: catchwater pipeline run {file}")


def _keep(opened: _Opened, reports: "Mapping[str, Report]") -> None:
    """Let the pipeline's status tell it, too."""
    from catchwater.clock import SYSTEM
    from catchwater.sinks.reconcile import keep_comparisons, summed_up

    found = [
        summed_up(name, report, SYSTEM.now_ms(), exactly_once=name not in opened.unmarked)
        for name, report in reports.items()
    ]
    with suppress(OSError):
        keep_comparisons(opened.checkpoint, found, opened.every)


def verified(file: Path) -> "dict[str, Report]":
    """What `verify` finds in each sink."""
    from catchwater.sinks import reconcile

    with _opened(file, None) as opened:
        return {n: reconcile.verify(each, opened.committed) for n, each in opened.sinks.items()}


def last_epochs(file: Path) -> dict[str, int | None]:
    """The newest epoch of each sink; None for one without marks, absent for one without epochs."""
    with _opened(file, None) as opened:
        found = {name: each.last_epoch() for name, each in opened.sinks.items()}
    return {name: at for name, at in found.items() if at is not None or name in opened.unmarked}


@contextmanager
def _opened(file: Path, only: str | None) -> "Iterator[_Opened]":
    """The pipeline's sinks, or only this one, with their state in the checkpoint.

    Raises `OtherPipeline` before it opens a target that is not the one the checkpoint is bound to.
    """
    from catchwater.cli.console import open_here
    from catchwater.pipeline.opened import check_fit
    from catchwater.pipeline.run.versions import Identity, check_targets
    from catchwater.recovery.ledger import Ledger

    whole = open_here(file).with_log()
    check_fit(whole.config, whole.specs)
    config = _with_only(whole.config, only)
    with closing(whole.other(config=config)) as pipeline:
        bound = Identity.read(config.checkpoint)
        if bound is not None:
            targets = pipeline.identity().sinks
            check_targets(config.checkpoint, bound, targets, pipeline.doubt)
        committed = max(Ledger(config.checkpoint).epochs(), default=None)
        unmarked = frozenset(n for n, each in config.every_sink.items() if not each.exactly_once)
        every = whole.config.every_sink
        yield _Opened(pipeline.sinks, committed, config.checkpoint, unmarked, every)


def _with_only(config: "PipelineConfig", only: str | None) -> "PipelineConfig":
    """The configuration without the other sinks, which are not checked. Raises `NoSuchSink`."""
    if only is None:
        return config
    if only not in config.every_sink:
        raise NoSuchSink(
            f"The pipeline has no sink {only!r}.",
            hint=f"The nearest is {nearest(only, config.every_sink)}.",
        )
    dead_letter = config.dead_letter
    return replace(
        config,
        sinks={name: each for name, each in config.sinks.items() if name == only},
        dead_letter=dead_letter if dead_letter is not None and dead_letter.name == only else None,
    )


def _print(reports: "Mapping[str, Report]") -> None:
    rows: list[list[object]] = []
    for name, report in reports.items():
        counts = Counter[str](finding.kind for finding in report.findings)
        epochs = "" if report.first is None else f"{report.first}-{report.last}"
        rows.append([name, epochs, report.rows, *(counts[kind] for kind in _KINDS)])
    print_table(["sink", "epochs", "rows", *_KINDS], rows)
    for name, report in reports.items():
        if report.gone:
            talk(_lost(name, report))
        if report.findings:
            shown = report.findings[:_SHOWN]
            typer.echo()
            print_table(
                [name, "epoch", "shard", "row", "key"],
                [[f.kind, *f.id, f.key.decode(errors="replace")] for f in shown],
            )
            if len(report.findings) > _SHOWN:
                talk(f"and {spaced(len(report.findings) - _SHOWN)} more: --json tells all")


def _lost(name: str, report: "Report") -> str:
    return f"{name}: epochs {report.gone[0]} to {report.gone[-1]} are lost and not kept"


def _report_fields(name: str, report: "Report") -> dict[str, Any]:
    counts = Counter[str](finding.kind for finding in report.findings)
    return {
        "sink": name,
        "first_epoch": report.first,
        "last_epoch": report.last,
        "rows": report.rows,
        "epochs_lost": list(report.gone),
        **{kind: counts[kind] for kind in _KINDS},
        "findings": [_row(finding) for finding in report.findings],
    }


def _row(finding: "Finding") -> dict[str, Any]:
    return {
        "kind": finding.kind,
        **finding.id._asdict(),
        "key": finding.key.decode("utf-8", "replace"),
    }


def _summary(findings: "tuple[Finding, ...] | list[Finding]") -> str:
    counts = Counter[str](finding.kind for finding in findings)
    return ", ".join(f"{spaced(counts[kind])} {kind}" for kind in _KINDS if counts[kind])
