"""A CSV file becomes invoice lines, or one sentence that says where it is wrong."""

import gzip
from pathlib import Path

import pytest

from catchwater.demo.online_retail import COLUMNS, BadCsv, read_rows
from catchwater.demo.retail import InvoiceLine

HEADER = ",".join(COLUMNS)
GOOD = "536365,85123A,WHITE HEART,6,2010-12-01 08:26:00,2.55,17850.0,United Kingdom"


def invoice_lines(path: Path) -> list[InvoiceLine]:
    return [line for _, line in read_rows(path)]


def write(folder: Path, *lines: str, name: str = "lines.csv") -> Path:
    path = folder / name
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_row_becomes_an_invoice_line(tmp_path: Path) -> None:
    (line,) = invoice_lines(write(tmp_path, HEADER, GOOD))
    assert (line.customer, line.invoice, line.stock_code) == ("17850", "536365", "85123A")
    assert (line.quantity, line.price_thousandths) == (6, 2550)
    assert line.at == 1_291_191_960_000  # 2010-12-01T08:26:00Z


def test_a_gzipped_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    plain = write(tmp_path, HEADER, GOOD)
    packed = tmp_path / "lines.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert invoice_lines(packed) == invoice_lines(plain)


def test_columns_may_stand_in_any_order_beside_others(tmp_path: Path) -> None:
    names = [*reversed(COLUMNS), "Comment"]
    cells = [*reversed(GOOD.split(",")), "late"]
    (line,) = invoice_lines(write(tmp_path, ",".join(names), ",".join(cells)))
    assert (line.invoice, line.quantity) == ("536365", 6)


def test_a_row_without_customer_belongs_to_its_invoice(tmp_path: Path) -> None:
    (line,) = invoice_lines(write(tmp_path, HEADER, GOOD.replace("17850.0", "")))
    assert line.customer == "guest:536365"


def test_rows_have_the_same_id_only_if_every_column_is_the_same(tmp_path: Path) -> None:
    other = GOOD.replace("United Kingdom", "France")
    lines = invoice_lines(write(tmp_path, HEADER, GOOD, GOOD, other))
    assert lines[0].id == lines[1].id != lines[2].id


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([HEADER.replace("Quantity", "Qty"), GOOD], ["line 1", "missing column Quantity"]),
        ([HEADER], ["no rows"]),
        ([HEADER, GOOD, GOOD.replace(",6,", ",six,")], ["line 3", "column Quantity", "'six'"]),
        ([HEADER, GOOD.replace("2010-12-01", "01/12/10")], ["line 2", "column InvoiceDate"]),
        ([HEADER, GOOD.replace("2.55", "free")], ["line 2", "column UnitPrice", "'free'"]),
        ([HEADER, GOOD.replace("2.55", "NaN")], ["line 2", "column UnitPrice", "'NaN'"]),
        ([HEADER, GOOD.replace("2.55", "inf")], ["line 2", "column UnitPrice", "'inf'"]),
        ([HEADER, GOOD.replace("536365", "")], ["line 2", "column InvoiceNo"]),
        ([HEADER, GOOD + ",more"], ["line 2", "9 columns where the header has 8"]),
        ([HEADER, '"536365'], ["line 2", "unexpected end of data"]),
    ],
)
def test_a_bad_file_is_refused_with_line_and_column(
    tmp_path: Path, lines: list[str], words: list[str]
) -> None:
    path = write(tmp_path, *lines)
    with pytest.raises(BadCsv) as refused:
        invoice_lines(path)
    for word in [str(path), *words]:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [b"not gzip at all", gzip.compress(b"x" * 5000)[:-9], b"\xff"],
    ids=["no gzip", "cut short", "no text"],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / ("lines.csv" if content == b"\xff" else "lines.csv.gz")
    path.write_bytes(content)
    with pytest.raises(BadCsv, match=r"lines\.csv"):
        list(read_rows(path))


def test_an_absent_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadCsv, match="No such file"):
        list(read_rows(tmp_path / "absent.csv"))
