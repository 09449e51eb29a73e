"""`catchwater check history.jsonl`: find the anomalies in a recorded history.

Leaves with 0 where nothing is wrong and with 4 where an anomaly that is never allowed was found.
"""

from pathlib import Path
from typing import Annotated

import typer

from catchwater.cli.console import FAILS, AsJson, noun, print_json, print_table, talk

app = noun(has_verbs=False)


@app.command()
def check(
    history: Annotated[
        Path, typer.Argument(show_default=False, help="JSON lines; see docs/testing.md.")
    ],
    as_json: AsJson = False,
) -> None:
    """Count the anomalies in a recorded history, class by class."""
    from catchwater.drill.check import check as judge
    from catchwater.drill.history import read_history

    report = judge(read_history(history))
    if as_json:
        answer = {"verdict": report.verdict, "operations": report.operations}
        answer |= {"records": report.records, "unjudged_partitions": report.unjudged}
        print_json({**answer, "findings": report.findings})
    else:
        rows = [
            (found.anomaly, found.count, _verdict(found.count, allowed=found.allowed))
            for found in report.findings
        ]
        print_table(["anomaly", "count", "verdict"], rows)
        for found in report.findings:
            for example in found.examples if found.count and not found.allowed else ():
                where = ", ".join(map(str, example.lines))
                typer.echo(f"{found.anomaly}, line {where}: {example.what}")
    talk(f"{report.operations} operations, {report.records} records polled: {report.verdict}.")
    if report.unjudged:
        talk(f"{report.unjudged} partitions have no final polls: nothing can be unseen there.")
    if report.verdict == "fail":
        raise typer.Exit(FAILS)


def _verdict(count: int, *, allowed: bool) -> str:
    if not count:
        return "none"
    return "allowed" if allowed else "fail"
