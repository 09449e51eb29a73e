"""Every command that is named as the next one can be typed: on the page, in a verdict, an alert."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from catchwater.cli import app

ROOT = Path(__file__).parents[3]
SOURCES = [
    *sorted((ROOT / "src/catchwater/web").glob("*.py")),
    ROOT / "src/catchwater/verdicts.py",
]
"""Whose texts that begin with the command's name are commands."""
PLACES = {"FILE": "pipeline.toml"}


def texts(path: Path) -> Iterator[str]:
    """With a word for each value that is filled in."""
    tree = ast.parse(path.read_text())
    parts = {id(each) for f in ast.walk(tree) if isinstance(f, ast.JoinedStr) for each in f.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else "name"
                for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) not in parts:
                yield node.value


def commands() -> list[str]:
    rules = (ROOT / "docs/monitoring/rules.yml").read_text()
    found = {re.sub(r"\{\{.*?\}\}", "name", each) for each in re.findall(r"next: (.+)", rules)}
    for path in SOURCES:
        found |= {text for text in texts(path) if re.match(r"catchwater [a-z]+( |$)", text)}
    return sorted(found)


def parsed(command: str) -> None:
    """Take the command's line apart as a shell and `catchwater` do, without running it."""
    words = [PLACES.get(word, word) for word in shlex.split(command)[1:]]
    group: Any = typer.main.get_command(app)
    context = group.make_context("catchwater", words[:1], resilient_parsing=True)
    while hasattr(group, "get_command"):
        group, words = group.get_command(context, words[0]), words[1:]
        assert group is not None, f"{command}: there is no such command"
    group.make_context("catchwater", words, parent=context)


def test_there_are_commands_on_the_page_in_verdicts_and_in_alerts() -> None:
    said = "\n".join(commands())
    for part in ("group reset", "txn abort", "sink verify", "contract check", "top brokers"):
        assert f"catchwater {part}" in said


@pytest.mark.parametrize("command", commands())
def test_a_command_that_is_named_can_be_typed(command: str) -> None:
    parsed(command)


@pytest.mark.parametrize(
    "command", ["catchwater sink verify", "catchwater chekc", "catchwater txn abort x --nobody"]
)
def test_one_that_cannot_be_typed_is_found(command: str) -> None:
    with pytest.raises(Exception, match=r"(?i)missing|no such|nobody"):
        parsed(command)
