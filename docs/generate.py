"""Write anew what the pages take from the code: the served Kafka APIs, topic settings, results."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from benchmarks.page import PAGE as BENCHMARKS
from benchmarks.page import figures, page
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from catchwater.broker.metrics import Metrics
from catchwater.broker.router import coverage_table
from catchwater.broker.topic_config import settings_table
from catchwater.cli import app
from catchwater.log.read.reader import ReadCounts
from catchwater.log.write.writer import Written
from catchwater.objects.retry import RequestCounts
from catchwater.pipeline.run.metrics import PipelineMetrics
from catchwater.sinks.config import options_table

DOCS = Path(__file__).parent
README = DOCS.parent / "README.md"


def main() -> None:
    """Replace the generated tables, each known by its first line, and BENCHMARKS.md."""
    BENCHMARKS.write_text(page())
    replace(DOCS / "protocol.md", coverage_table())
    replace(DOCS / "protocol.md", settings_table())
    replace(DOCS / "commands.md", commands_table())
    replace(DOCS / "sinks.md", options_table())
    for table in metrics_tables():
        replace(DOCS / "monitoring.md", table)
    replace(README, figures())


def commands_table() -> str:
    """Every command with the first sentence of its help."""
    root = typer.main.get_command(app)
    with root.make_context("catchwater", [], resilient_parsing=True) as context:
        lines = ["| command | what it does |", "|---|---|", *_commands(root, context, "")]
    return "\n".join(lines) + "\n"


def _commands(group: Any, context: Any, path: str) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if hasattr(command, "list_commands"):
            yield from _commands(command, context, f"{path}{name} ")
        else:
            yield f"| `{path}{name}` | {command.get_short_help_str(limit=200)} |"


def metrics_tables() -> list[str]:
    """Every metric of a broker, and every one of a pipeline."""
    broker = Metrics()
    broker.show(RequestCounts(), ReadCounts(), Written())
    broker.show_tables(dict)
    pipeline = PipelineMetrics("p", ["f"]).registry
    pages = {"broker": broker.page(), "pipeline": generate_latest(pipeline)}
    return [
        "\n".join((f"| metric of a {of} | type | what |", "|---|---|---|", *_families(page), ""))
        for of, page in pages.items()
    ]


def _families(page: bytes) -> Iterator[str]:
    for family in text_string_to_metric_families(page.decode()):
        if not family.name.endswith("_created"):
            name = family.name + ("_total" if family.type == "counter" else "")
            yield f"| `{name}` | {family.type} | {family.documentation.rstrip('.')} |"


def replace(page: Path, table: str) -> None:
    """Put `table` where the page has one with the same first line."""
    text = page.read_text()
    pattern = rf"^{re.escape(table.splitlines()[0])}\n(\|.*\n)+"
    assert len(re.findall(pattern, text, re.MULTILINE)) == 1, f"{page} has no such table"
    page.write_text(re.sub(pattern, lambda _: table, text, flags=re.MULTILINE))


if __name__ == "__main__":
    main()
