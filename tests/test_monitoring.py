"""The shipped rules and dashboard: valid for Prometheus, and about metrics that there are."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from docs.generate import metrics_tables

FOLDER = Path(__file__).parent.parent / "docs" / "monitoring"
RULES, DASHBOARD = FOLDER / "rules.yml", FOLDER / "dashboard.json"
PROMTOOL = shutil.which("promtool")
NAME = re.compile(r"\bcatchwater_\w+|\bcatchwater:[\w:]+")
VARIABLES = {"$__rate_interval": "5m", "$pipeline": ".*", "$group": ".*"}


def exported() -> set[str]:
    """Every name that a query may have."""
    names = set()
    for name, kind in re.findall(r"^\| `(\w+)` \| (\w+) \|", "".join(metrics_tables()), re.M):
        suffixes = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {name + suffix for suffix in suffixes}
    return names


def panels() -> Iterator[dict[str, Any]]:
    yield from (each for each in json.loads(DASHBOARD.read_text())["panels"] if "targets" in each)


def queries() -> list[str]:
    found = [target["expr"] for panel in panels() for target in panel["targets"]]
    for variable, value in VARIABLES.items():
        found = [query.replace(variable, value) for query in found]
    return found


def expressions() -> list[str]:
    """Of the rules."""
    return re.findall(r"^ *expr: (.+)$", RULES.read_text(), re.M)


def test_what_rules_and_dashboard_ask_for_is_exported() -> None:
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    known = exported() | recorded
    for query in (*expressions(), *queries()):
        assert NAME.findall(query), query
        assert set(NAME.findall(query)) <= known, query


def test_the_dashboard_shows_the_three_verdicts_first_and_leaves_no_variable() -> None:
    titles = [panel["title"] for panel in panels()]
    assert titles[:3] == ["Correct", "Recoverable", "Fresh"]
    assert len(titles) == len(set(titles))
    assert "$" not in "".join(queries())


def test_every_alert_says_what_to_do_next() -> None:
    text = RULES.read_text()
    assert text.count("- alert:") == text.count("next: catchwater ") == text.count("summary: ")


def promtool(*arguments: object) -> None:
    if PROMTOOL is None:
        pytest.skip("promtool (Debian's package prometheus) is not installed")
    done = subprocess.run(
        [PROMTOOL, *map(str, arguments)], cwd=FOLDER, capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_rules_and_they_fire_when_they_should() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", FOLDER / "rules-test.yml")


def test_prometheus_takes_every_query_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"query:{at}", "expr": query} for at, query in enumerate(queries())]
    path = tmp_path / "dashboard.json"  # JSON is YAML, too
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", path)
