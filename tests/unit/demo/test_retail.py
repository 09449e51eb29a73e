"""The retail function on rows of a file, without Spark: what the plain loop says, it says."""

import csv
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.demo import reference
from catchwater.demo.online_retail import COLUMNS, read_rows
from catchwater.demo.reference import Expected
from catchwater.demo.retail import RetailReturns
from catchwater.testing import Harness


@st.composite
def rows(draw: st.DrawFn) -> list[str]:
    """A row like those of a shop with two customers and two articles, over some months."""
    kind = draw(st.sampled_from(["buys", "buys", "cancels", "is corrected"]))
    number = draw(st.integers(1, 9))
    quantity = draw(st.integers(1, 5)) * (1 if kind == "buys" else -1)
    return [
        f"{'C' if kind == 'cancels' else ''}{number}",
        draw(st.sampled_from(["A", "B"])),
        "",
        str(quantity),
        f"2011-{draw(st.integers(1, 4)):02d}-{draw(st.integers(1, 28)):02d} 10:00:00",
        draw(st.sampled_from(["0", "0.1", "2.55", "-11062.061"])),
        draw(st.sampled_from(["7.0", "8.0", ""])),
        "UK",
    ]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("retail") / "lines.csv"


@given(st.lists(rows(), min_size=1, max_size=60), st.integers(1, 20), st.booleans())
@settings(max_examples=150, deadline=None)
def test_the_function_equals_the_plain_loop_in_any_order_of_rows(
    file: Path, lines: list[list[str]], batch: int, in_order: bool
) -> None:
    if in_order:
        lines.sort(key=lambda line: line[4])
    with file.open("w", newline="") as text:
        csv.writer(text).writerows([COLUMNS, *lines])
    expected = reference.retail(file)
    actual = Expected()
    h = Harness(RetailReturns)
    for row in h.run((line for _, line in read_rows(file)), batch=batch):
        actual.add(asdict(row))
    assert actual.rows == expected.rows
    assert h.duplicates == expected.duplicates
