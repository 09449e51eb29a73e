"""The documents' Python runs as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, language: str) -> list[str]:
    """The code of one language in a page, in order."""
    found = BLOCK.findall((ROOT / page).read_text())
    return [code for name, code in found if name == language]


def test_the_ten_lines_of_the_readme_do_what_it_says() -> None:
    exec("\n".join(blocks("README.md", "python")), {"__name__": "readme"})


def test_the_operators_page_declares_functions_that_could_run() -> None:
    shop = """
from dataclasses import dataclass
from catchwater import Context, Out, function
from catchwater.operators import Found, Window, begin, session, sliding, tumbling

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


@pytest.mark.parametrize(
    "example", sorted((ROOT / "examples").glob("[!t]*.py")), ids=lambda p: p.stem
)
def test_an_example_is_short_and_has_its_file_its_test_and_its_line(example: Path) -> None:
    assert example.read_text().count("\n") <= 100
    for name in (f"{example.stem}.toml", f"test_{example.stem}.py"):
        assert (example.parent / name).exists()
        assert name in (example.parent / "README.md").read_text()
