"""`catchwater drill …`: rehearse failures, and hold what happens against a budget.

What a drill has started itself it may break. Anything else is only spoken of, unless it is allowed.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import (
    FAILS,
    WARNS,
    AsJson,
    DryRun,
    as_json_line,
    noun,
    print_rows,
    talk,
)
from catchwater.config import CatchwaterError, nearest

if TYPE_CHECKING:
    from contextlib import ExitStack

    from catchwater.clock import Clock
    from catchwater.drill.catalogue import Drill
    from catchwater.drill.platforms import Platform
    from catchwater.drill.result import Result
    from catchwater.drill.scene import Shape

    Make = Callable[[Path, ExitStack, Clock, dict[str, str]], Platform]

app = noun()

RESULTS = Path("drills")
OURS, KAFKA = "catchwater", "apache-kafka"

On = Annotated[
    str,
    typer.Option(
        "--on",
        metavar="PLATFORM",
        help=f"{OURS}, {KAFKA}, or the TOML file of any other Kafka.",
    ),
]
KafkaJars = Annotated[
    Path | None,
    typer.Option(
        "--kafka-jars",
        envvar="CATCHWATER_KAFKA_JARS",
        metavar="DIR",
        help="The folder libs of Apache Kafka's distribution.",
    ),
]
BudgetFile = Annotated[
    Path | None, typer.Option("--budget", metavar="FILE", help="TOML; otherwise the defaults.")
]
Results = Annotated[
    Path,
    typer.Option("--results", metavar="DIR", help="Where results are kept for the report."),
]
Rate = Annotated[float, typer.Option(min=1, help="Records a second, through fault and restore.")]
State = Annotated[
    str, typer.Option("--state", metavar="SIZE", help="What the function keeps, such as 64MB.")
]
Cards = Annotated[int, typer.Option(min=1, help="How many keys there are.")]
Skew = Annotated[float, typer.Option(min=0, help="0: even; 1: as Zipf's law has it.")]
Late = Annotated[float, typer.Option(min=0, max=0.5, help="The share that comes too late.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="NAME|HOST:PORT", help="A platform that may be broken for real."
    ),
]
YesReally = Annotated[
    str | None,
    typer.Option("--yes-really", metavar="NAME", help="A platform with a production name, again."),
]


class NoSuchDrill(CatchwaterError):
    """There is no drill of this name."""

    exit_code = 2


@app.callback()
def drill() -> None:
    """Rehearse failures, and hold what happens against a budget."""


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the drills: what ought to hold, what is broken, how long it takes."""
    from catchwater.drill.catalogue import DRILLS

    rows = [(d.name, d.takes, d.hypothesis, d.blast_radius) for d in DRILLS.values()]
    if as_json:
        print_rows(["drill", "takes", "hypothesis", "blast_radius"], rows, as_json=True)
    else:
        print_rows(["drill", "takes", "hypothesis"], [row[:3] for row in rows], as_json=False)


@app.command()
def run(
    name: Annotated[str, typer.Argument(show_default=False, help="One of `drill list`.")],
    on: On = OURS,
    kafka_jars: KafkaJars = None,
    budget: BudgetFile = None,
    results: Results = RESULTS,
    rate: Rate = 1_000.0,
    state: State = "0",
    cards: Cards = 2_000,
    skew: Skew = 1.05,
    late: Late = 0.001,
    allow: Allow = None,
    yes_really: YesReally = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run one drill: print what it breaks, break it, compare what happened with the budget.

    Everything is undone in the end, also when this process is killed. Exit 0, 3 (warns or unknown)
    or 4 (fails).
    """
    from catchwater.drill.catalogue import DRILLS

    if name not in DRILLS:
        hint = f"The nearest is {nearest(name, DRILLS)}; catchwater drill list shows all."
        raise NoSuchDrill(f"There is no drill {name!r}.", hint=hint)
    shape = _shape(rate, state, cards, skew, late)
    platform = _platform(on, kafka_jars, allow or [], yes_really, dry_run=dry_run)
    found = _run([DRILLS[name]], platform, budget, results, shape)
    for each in found:
        typer.echo(as_json_line(each)) if as_json else _print(each)
    _leave(found)


@app.command("all")
def all_(
    on: On = OURS,
    kafka_jars: KafkaJars = None,
    budget: BudgetFile = None,
    results: Results = RESULTS,
    rate: Rate = 1_000.0,
    state: State = "0",
    cards: Cards = 2_000,
    skew: Skew = 1.05,
    late: Late = 0.001,
    allow: Allow = None,
    yes_really: YesReally = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run every drill that the platform can be put through, one after the other.

    With --json the last line is {"drills": [{"name", "verdict", …}]}. Exit 0, 3 or 4.
    """
    from catchwater.drill.catalogue import DRILLS

    shape = _shape(rate, state, cards, skew, late)
    platform = _platform(on, kafka_jars, allow or [], yes_really, dry_run=dry_run)
    fitting = [each for each in DRILLS.values() if on == OURS or not each.needs_ours]
    found = _run(fitting, platform, budget, results, shape)
    if as_json:
        typer.echo(as_json_line({"drills": [_summary(each) for each in found]}))
    else:
        print_rows(
            ["drill", "verdict", "restore_s", "estimate_s", "seconds"],
            [(r.drill, r.verdict, r.restore_s, r.estimate_s, r.seconds) for r in found],
            as_json=False,
        )
    _leave(found)


@app.command()
def undo() -> None:
    """Undo what a drill has left that was killed: its processes, its files, its faults."""
    from catchwater.drill.journal import folder_of_drills, undo_left

    undone = undo_left(folder_of_drills())
    talk(f"undone: {', '.join(undone)}" if undone else "nothing is left of any drill")


def _run(
    drills: "Sequence[Drill]",
    make: "Make | None",
    budget: Path | None,
    results: Path,
    shape: "Shape",
) -> "list[Result]":
    from catchwater.drill.catalogue import DRILLS
    from catchwater.drill.conduct import Wanted, conduct
    from catchwater.drill.journal import folder_of_drills, undo_left
    from catchwater.drill.result import read_budgets, write_result

    budgets = read_budgets(budget, DRILLS) if budget else {}
    for run in undo_left(folder_of_drills()):
        talk(f"undone first, what drill {run} had left")
    found = []
    for each in drills:
        talk(f"{each.name}: {each.hypothesis}")
        talk(f"  blast radius: {each.blast_radius}")
        if make is None:
            talk("  dry run: nothing was done")
            continue
        if each.needs_spark:
            _check_spark()
        wanted = Wanted(make, shape, lambda what: talk(f"  {what}"), logs=results)
        result = conduct(each, budgets.get(each.name, each.budget), wanted)
        path = write_result(results, result)
        talk(f"  {result.verdict} in {result.seconds:.0f} s: {path}")
        found.append(result)
    return found


def _check_spark() -> None:
    from catchwater.pipeline.spark import session

    session.check_packages()
    session.find_java()


def _platform(
    on: str,
    kafka_jars: Path | None,
    allowed: list[str],
    really: str | None,
    *,
    dry_run: bool,
) -> "Make | None":
    """What makes the platform; None: only say what would be done."""
    from catchwater.drill.conduct import apache_kafka, ours
    from catchwater.drill.platforms import BadPlatform, permitted, read_platform

    if on == OURS:
        return None if dry_run else ours
    if on == KAFKA:
        if kafka_jars is None:
            raise BadPlatform(
                "Where is Apache Kafka?",
                hint="Name the folder libs of its distribution with --kafka-jars.",
            )
        return None if dry_run else apache_kafka(kafka_jars)
    platform = read_platform(Path(on))
    named = [*allowed, *os.environ.get("CATCHWATER_DRILL_ALLOW", "").split(",")]
    for what, command in platform.commands.items():
        talk(f"{platform.name}: to {what} it, {' '.join(command)}")
    if permitted(platform, named, really, dry_run=dry_run):
        return lambda folder, children, clock, marks: platform
    if not dry_run:
        talk(f"{platform.name} was not started by the drill: --allow {platform.name} breaks it")
    return None


def _shape(rate: float, state: str, cards: int, skew: float, late: float) -> "Shape":
    from catchwater.drill.scene import Shape

    return Shape(rate, _bytes(state), cards, skew, late)


def _bytes(text: str) -> int:
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9}
    number = text.rstrip("BKMGbkmg")
    unit = text[len(number) :].upper()
    if unit not in units or not number.strip().isdigit():
        raise typer.BadParameter(f"{text!r} is no size such as 64MB", param_hint="--state")
    return int(number) * units[unit]


def _summary(result: "Result") -> dict[str, object]:
    failed = [each.name for each in result.findings if each.verdict != "pass"]
    return {
        "name": result.drill,
        "verdict": result.verdict,
        "platform": result.platform,
        "restore_s": result.restore_s,
        "estimate_s": result.estimate_s,
        "manual_steps": len(result.manual_steps),
        "seconds": result.seconds,
        "not_passed": failed,
    }


def _print(result: "Result") -> None:
    rows = [
        (each.verdict, each.name, each.measured, each.budget, each.unit, each.why)
        for each in result.findings
    ]
    print_rows(["verdict", "of", "measured", "budget", "unit", "why"], rows, as_json=False)
    typer.echo(f"\n{result.drill} on {result.platform}: {result.verdict}")


def _leave(found: "list[Result]") -> None:
    verdicts = {each.verdict for each in found}
    if "fail" in verdicts:
        raise typer.Exit(FAILS)
    if verdicts & {"warn", "unknown"}:
        raise typer.Exit(WARNS)
