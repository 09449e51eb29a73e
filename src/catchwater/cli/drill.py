"""`catchwater drill …`: rehearse failures, and hold what happens against a budget.

What a drill has started itself it may break. Anything else is only spoken of, unless it is allowed.
"""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from shutil import copy
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
    from catchwater.drill.catalogue import Drill
    from catchwater.drill.conduct import Make
    from catchwater.drill.plain_spark import SparkPlace
    from catchwater.drill.readiness import PipelineEvidence, PlatformEvidence
    from catchwater.drill.result import Result
    from catchwater.drill.scene import Shape

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
Brokers = Annotated[
    int,
    typer.Option(
        "--brokers",
        metavar="1|3",
        help="How many are started, each in a zone of its own; zone-loss always has three.",
    ),
]
SparkPython = Annotated[
    Path | None,
    typer.Option(
        "--spark-python",
        metavar="PYTHON",
        help="Drill a plain Spark job in place of a pipeline: a Python with pyspark and pandas.",
    ),
]
SparkJars = Annotated[
    Path | None,
    typer.Option("--spark-jars", metavar="DIR", help="Spark's Kafka connector, for that job."),
]
BudgetFile = Annotated[
    Path | None, typer.Option("--budget", metavar="FILE", help="TOML; otherwise the defaults.")
]
Results = Annotated[
    Path,
    typer.Option("--results", metavar="DIR", help="Where results are kept for the report."),
]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        help="Write the readiness report of the drilled pipeline, asked before all is undone.",
    ),
]
Open = Annotated[
    bool, typer.Option("--open", help="Show that report in a browser; by default RESULTS/….html.")
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
    brokers: Brokers = 1,
    spark_python: SparkPython = None,
    spark_jars: SparkJars = None,
    budget: BudgetFile = None,
    results: Results = RESULTS,
    rate: Rate = 1_000.0,
    state: State = "0",
    cards: Cards = 2_000,
    skew: Skew = 1.05,
    late: Late = 0.001,
    allow: Allow = None,
    yes_really: YesReally = None,
    report: ReportFile = None,
    open_: Open = False,
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
    platform = _platform(on, kafka_jars, brokers, allow or [], yes_really, dry_run=dry_run)
    spark = _spark(spark_python, spark_jars)
    if spark and DRILLS[name].needs_spark and not DRILLS[name].any_job:
        raise NoSuchDrill(f"A plain Spark job cannot be put through {name}: it has nothing of it.")
    asked = _collector(results, report, show=open_)
    found = _run([DRILLS[name]], platform, budget, results, shape, spark, asked)
    for each in found:
        typer.echo(as_json_line(each)) if as_json else _print(each)
    if asked is not None and found:
        _report(asked, results, report, show=open_)
    _leave(found)


@app.command("all")
def all_(
    on: On = OURS,
    kafka_jars: KafkaJars = None,
    brokers: Brokers = 1,
    spark_python: SparkPython = None,
    spark_jars: SparkJars = None,
    budget: BudgetFile = None,
    results: Results = RESULTS,
    rate: Rate = 1_000.0,
    state: State = "0",
    cards: Cards = 2_000,
    skew: Skew = 1.05,
    late: Late = 0.001,
    allow: Allow = None,
    yes_really: YesReally = None,
    report: ReportFile = None,
    open_: Open = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Run every drill that the platform can be put through, one after the other.

    With --json the last line is {"drills": [{"name", "verdict", …}]}. Exit 0, 3 or 4. The report is
    that of the pipeline that was drilled last, with all results.
    """
    from catchwater.drill.catalogue import DRILLS

    shape = _shape(rate, state, cards, skew, late)
    platform = _platform(on, kafka_jars, brokers, allow or [], yes_really, dry_run=dry_run)
    spark = _spark(spark_python, spark_jars)
    fitting = [
        each for each in DRILLS.values() if _fits(each, on, brokers, plain=spark is not None)
    ]
    asked = _collector(results, report, show=open_)
    found = _run(fitting, platform, budget, results, shape, spark, asked)
    if as_json:
        typer.echo(as_json_line({"drills": [_summary(each) for each in found]}))
    else:
        print_rows(
            ["drill", "verdict", "restore_s", "estimate_s", "seconds"],
            [(r.drill, r.verdict, r.restore_s, r.estimate_s, r.seconds) for r in found],
            as_json=False,
        )
    if asked is not None and found:
        _report(asked, results, report, show=open_)
    _leave(found)


@app.command()
def undo() -> None:
    """Undo what a drill has left that was killed: its processes, its files, its faults."""
    from catchwater.drill.journal import folder_of_drills, undo_left

    undone = undo_left(folder_of_drills())
    talk(f"undone: {', '.join(undone)}" if undone else "nothing is left of any drill")


def _run(
    drills: "Sequence[Drill]",
    make: "Callable[[Drill], Make] | None",
    budget: Path | None,
    results: Path,
    shape: "Shape",
    spark: "SparkPlace | None" = None,
    asked: "EvidenceCollector | None" = None,
) -> "list[Result]":
    from catchwater.drill.catalogue import DRILLS
    from catchwater.drill.conduct import DrillRun, conduct
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
        if each.needs_spark and spark is None:
            _check_spark()
        wanted = DrillRun(
            make(each), shape, lambda what: talk(f"  {what}"), logs=results, spark=spark,
            ask=asked.ask if asked else lambda file: None,
        )  # fmt: skip
        result = conduct(each, budgets.get(each.name, each.budget), wanted)
        path = write_result(results, result)
        talk(f"  {result.verdict} in {result.seconds:.0f} s: {path}")
        found.append(result)
    return found


def _collector(results: Path, report: Path | None, *, show: bool) -> "EvidenceCollector | None":
    """What asks a drilled pipeline for its report, if one is wanted."""
    return EvidenceCollector(results / "evidence") if report or show else None


class EvidenceCollector:
    """What the drilled pipeline and its log said before they were undone."""

    def __init__(self, kept: Path) -> None:
        self._kept = kept
        self.found: list[tuple[PipelineEvidence, PlatformEvidence]] = []

    def ask(self, file: Path) -> None:
        """Of a pipeline's file. What the report links to is kept: the drill's folder is not."""
        from msgspec.structs import replace

        from catchwater.cli.readiness import asked_of

        talk("  asking for the report")
        pipeline, platform = asked_of(file)
        kept = self._kept.absolute()
        kept.mkdir(parents=True, exist_ok=True)
        there = {"file": str(kept / file.name)}
        copy(file, kept)
        if pipeline.contract is not None:
            there["contract"] = str(kept / "contract.json")
            copy(pipeline.contract, there["contract"])
        self.found.append((replace(pipeline, **there), platform))


def _report(asked: EvidenceCollector, results: Path, file: Path | None, *, show: bool) -> None:
    """Of what was drilled last, with every result there is, and shown where there is a browser."""
    import webbrowser

    from catchwater.cli.readiness import report_on
    from catchwater.drill.page import page

    out = file or results / "readiness.html"
    report = report_on(asked.found[-1:], results)
    out.write_text(page(report), encoding="utf-8")
    shown = show and webbrowser.open(out.absolute().as_uri())
    talk(
        f"{report.overall}: {out}" + ("" if shown or not show else ", which no browser here shows")
    )


def _check_spark() -> None:
    from catchwater.pipeline.spark import session

    session.check_packages()
    session.find_java()


def _spark(python: Path | None, jars: Path | None) -> "SparkPlace | None":
    """Where a plain Spark job runs; None: a pipeline of ours is drilled."""
    from catchwater.drill.plain_spark import find_spark

    return find_spark(python, jars) if python or jars else None


def _fits(drill: "Drill", on: str, brokers: int, *, plain: bool) -> bool:
    """Whether a platform, and the job on it, can be put through it."""
    if plain and drill.needs_spark and not drill.any_job:
        return False
    if drill.needs_ours and on != OURS:
        return False
    if drill.needs_one_broker and brokers > 1:
        return False
    if drill.needs_zones and on == OURS:
        from catchwater.drill.zones import has_postgres

        if not has_postgres():
            talk(f"{drill.name} is left out: no PostgreSQL for the catalog of three brokers here")
            return False
    return True


def _platform(
    on: str,
    kafka_jars: Path | None,
    brokers: int,
    allowed: list[str],
    really: str | None,
    *,
    dry_run: bool,
) -> "Callable[[Drill], Make] | None":
    """What makes a drill's platform; None: only say what would be done."""
    from catchwater.drill.conduct import apache_kafka, ours, ours_in_zones
    from catchwater.drill.platforms import ZONES, BadPlatform, permitted, read_platform

    if brokers not in (1, len(ZONES)):
        raise typer.BadParameter("a drill starts 1 broker or 3", param_hint="--brokers")
    if on == OURS:
        own = (ours_in_zones if brokers > 1 else ours), ours_in_zones
        return None if dry_run else lambda drill: own[drill.needs_zones]
    if on == KAFKA:
        if kafka_jars is None:
            raise BadPlatform(
                "Where is Apache Kafka?",
                hint="Name the folder libs of its distribution with --kafka-jars.",
            )
        kafka = apache_kafka(kafka_jars, brokers), apache_kafka(kafka_jars, len(ZONES))
        return None if dry_run else lambda drill: kafka[drill.needs_zones]
    platform = read_platform(Path(on))
    named = [*allowed, *os.environ.get("CATCHWATER_DRILL_ALLOW", "").split(",")]
    for what, command in platform.commands.items():
        talk(f"{platform.name}: to {what} it, {' '.join(command)}")
    if permitted(platform, named, really, dry_run=dry_run):
        return lambda drill: lambda folder, children, clock, marks: platform
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
        "job": result.job,
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
