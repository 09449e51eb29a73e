"""The documents' Python runs as it stands there; where it cannot, it names only what there is."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.page import PAGE, figures, page
from docs.generate import commands_table, metrics_tables

from catchwater.cli.init import FILES
from catchwater.demo.card_risk import CardRisk
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.plan import plan_of
from catchwater.pipeline.run.config import load
from catchwater.sinks.config import options_table
from catchwater.testing import Harness

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The code of one language in a page, in order."""
    found = BLOCK.findall((ROOT / page).read_text())
    return [code for name, code in found if name == language]


def test_the_ten_lines_of_the_readme_do_what_it_says() -> None:
    exec("\n".join(blocks("README.md", "python")), {"__name__": "readme"})


def test_the_page_of_benchmarks_shows_the_results_that_are_kept() -> None:
    assert PAGE.read_text() == page(), "make docs writes it anew"
    assert figures() in (ROOT / "README.md").read_text(), "make docs writes them anew"


def test_the_page_of_commands_lists_all_of_them() -> None:
    assert commands_table() in (ROOT / "docs/commands.md").read_text(), "make docs writes it anew"


def test_the_page_of_sinks_lists_every_key_of_every_kind() -> None:
    assert options_table() in (ROOT / "docs/sinks.md").read_text(), "make docs writes it anew"


def test_the_page_of_metrics_lists_every_one() -> None:
    page = (ROOT / "docs/monitoring.md").read_text()
    for table in metrics_tables():
        assert table in page, "make docs writes it anew"


def test_every_page_stands_in_the_index() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    missing = [page.name for page in pages if page.name not in index and page.name != "README.md"]
    assert not missing, f"docs/README.md does not lead to {missing}"


@pytest.mark.parametrize("page", ["docs/functions.md", "docs/replay.md"])
def test_a_page_whose_python_needs_a_log_imports_and_calls_what_there_is(page: str) -> None:
    harness = Harness(CardRisk)
    for code in blocks(page, "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("catchwater"):
                exec(ast.unparse(node), {})
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "h":
                assert hasattr(harness, node.attr), f"{page} names h.{node.attr}"


def test_the_operators_page_declares_functions_that_could_run() -> None:
    shop = """
from dataclasses import dataclass
from catchwater import Context, Out, function
from collections.abc import Iterable
from catchwater.operators import Match, Window, begin, session, sliding, tumbling

@dataclass
class Order: customer: str; id: str; at: int; cents: int
@dataclass
class Payment: customer: str; card: str; id: str; at: int; order: str; merchant: str
@dataclass
class Txn: card: str; id: str; at: int; amount: float
@dataclass
class Merchant: name: str
@dataclass
class Total: customer: str; hour: int; orders: int; cents: int
@dataclass
class Paid: order: str; payment: str | None
@dataclass
class Alert: card: str; id: str
@dataclass
class CompletePayment: id: str
"""
    exec("\n".join([shop, *blocks("docs/operators.md", "python")]), {"__name__": "operators"})


def test_the_page_on_running_declares_pipelines_in_python(tmp_path: Path) -> None:
    path = tmp_path / "pages.py"
    path.write_text("from examples.fraud_routing import CardScore, ReviewDesk\n"
                    "from catchwater.demo.card_risk import CardRisk\n"
                    + "\n".join(blocks("docs/running.md", "python")))  # fmt: skip
    pages = runpy.run_path(str(path))
    assert pages["pipeline"].plan(offline=True).ok
    assert {*pages["routing"].config.sinks} == {"scores", "cases"}


def edit(folder: Path, block: str) -> None:
    """Do what the tutorial asks for: definitions in the file give way to those of their name."""
    name, code = block.split("\n", 1)
    path = folder / name.removeprefix("# ")
    lines = path.read_text().splitlines(keepends=True)
    written = {getattr(each, "name", "") for each in ast.parse(code).body}
    for old in reversed(ast.parse(path.read_text()).body):
        if isinstance(old, ast.ClassDef | ast.FunctionDef) and old.name in written:
            first = min([old.lineno, *(each.lineno for each in old.decorator_list)])
            del lines[first - 1 : old.end_lineno]
    path.write_text("".join(lines) + "\n\n" + code)


def test_the_tutorials_function_passes_its_tests_in_every_version(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    versions = []
    for block in blocks("docs/tutorial.md", "python"):
        edit(tmp_path, block)
        versions += re.findall(r"version=(\d)", (tmp_path / "card_risk.py").read_text())
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=."],
            cwd=tmp_path, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "3 passed" in done.stdout, done.stdout
    assert versions == ["1", "2"]


def test_the_page_of_small_jobs_shows_what_is_tested_and_is_no_longer_than_the_others() -> None:
    """Ours are marked as python, the others as py."""
    tested = (ROOT / "examples/small_jobs.py").read_text()
    jobs = (ROOT / "docs/small-jobs.md").read_text().split("\n## ")[1:]
    assert len(jobs) == 5
    for job in jobs:
        (ours, code), *others = BLOCK.findall(job)
        assert ours == "python" and all(part.rstrip() in tested for part in code.split("\n\n\n"))
        assert len(others) == 2 and all(_lines(code) <= _lines(other) for _, other in others), code


def _lines(code: str) -> int:
    return sum(bool(line) and not line.startswith("#") for line in code.splitlines())


WITHOUT_A_FILE = ("notebook", "small_jobs")


@pytest.mark.parametrize(
    "example",
    sorted(p for p in (ROOT / "examples").glob("[!t]*.py") if p.stem not in WITHOUT_A_FILE),
    ids=lambda p: p.stem,
)
def test_an_example_is_short_and_has_its_file_its_test_and_its_line(example: Path) -> None:
    assert example.read_text().count("\n") <= 100
    for name in (f"{example.stem}.toml", f"test_{example.stem}.py"):
        assert (example.parent / name).exists()
        assert name in (example.parent / "README.md").read_text()
    sinks = plan_of(OpenPipeline(load(example.with_suffix(".toml"), {})))["sinks"]
    assert {sink["guarantee"] for sink in sinks} <= {"exactly-once", "idempotent"}
