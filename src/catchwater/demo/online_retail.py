"""Invoice lines out of a CSV file shaped like the UCI "Online Retail" data set, plain or gzipped.

Reads one row at a time, so memory does not grow with the file. Promises that a file it cannot
take is refused with its name, the line and the column; no row is ever skipped.
"""

import csv
import gzip
import zlib
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import IO, NamedTuple

from catchwater.config import CatchwaterError
from catchwater.demo.retail import InvoiceLine

COLUMNS = (
    "InvoiceNo",
    "StockCode",
    "Description",
    "Quantity",
    "InvoiceDate",
    "UnitPrice",
    "CustomerID",
    "Country",
)


class BadCsv(CatchwaterError):
    """A file that is not readable as invoice lines."""


class Row(NamedTuple):
    """One row of the file: its cells by column, and the invoice line they make."""

    cells: dict[str, str]
    line: InvoiceLine


def read_rows(path: Path) -> Iterator[Row]:
    """Every row of the file, in file order, at least one.

    Rows without a customer belong to `guest:<invoice>`. Raises `BadCsv`.
    """
    for number, cells in _cells(path):
        try:
            line = _invoice_line(cells)
        except _BadCell as bad:
            raise BadCsv(
                f"{path}, line {number}, column {bad.column}: {bad.value!r} is not {bad.wanted}",
                hint="mend or remove the row",
            ) from None
        yield Row(cells, line)


def _cells(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, column -> text) of every row."""
    try:
        with _open_text(path) as text:
            reader = csv.reader(text, strict=True)
            header = next(reader, [])
            _check_header(path, header)
            rows = 0
            for row in reader:
                if len(row) != len(header):
                    raise BadCsv(
                        f"{path}, line {reader.line_num}: {len(row)} columns where the header has "
                        f"{len(header)}",
                        hint="mend or remove the row",
                    )
                rows += 1
                yield reader.line_num, dict(zip(header, row, strict=True))
            if not rows:
                raise BadCsv(f"{path}, line 2: no rows after the header")
    except OSError as error:
        raise BadCsv(f"{path} cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error) as error:
        raise BadCsv(f"{path} is a damaged gzip file: {error}") from error
    except UnicodeDecodeError as error:
        raise BadCsv(
            f"{path} is not UTF-8 text: {error.reason} near byte {error.start} of a block",
            hint=f"convert it: iconv -f LATIN1 -t UTF-8 {path}",
        ) from error
    except csv.Error as error:
        raise BadCsv(f"{path}, line {reader.line_num}: {error}") from error


def _open_text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _check_header(path: Path, header: list[str]) -> None:
    missing = [name for name in COLUMNS if name not in header]
    if missing:
        raise BadCsv(
            f"{path}, line 1: missing column{'s' * (len(missing) > 1)} {', '.join(missing)}",
            hint=f"the header must name {', '.join(COLUMNS)}",
        )


class _BadCell(Exception):
    def __init__(self, column: str, value: str, wanted: str) -> None:
        super().__init__(column)
        self.column, self.value, self.wanted = column, value, wanted


def _invoice_line(row: dict[str, str]) -> InvoiceLine:
    invoice = row["InvoiceNo"]
    if not invoice:
        raise _BadCell("InvoiceNo", invoice, "an invoice number")
    return InvoiceLine(
        customer=row["CustomerID"].removesuffix(".0") or f"guest:{invoice}",
        # The same for two rows exactly when all their columns are the same.
        id=blake2b("\x1f".join(row.values()).encode(), digest_size=10).hexdigest(),
        at=_milliseconds(row["InvoiceDate"]),
        invoice=invoice,
        stock_code=row["StockCode"],
        quantity=_whole_number(row["Quantity"]),
        price_thousandths=_thousandths(row["UnitPrice"]),
    )


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise _BadCell("Quantity", text, "a whole number") from None


# The lines of one invoice share their time, and most articles their price.
@lru_cache(maxsize=1_000)
def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise _BadCell("InvoiceDate", text, "a time such as 2010-12-01 08:26:00") from None
    return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


@lru_cache(maxsize=10_000)
def _thousandths(text: str) -> int:
    try:
        thousandths = Decimal(text) * 1000
        if thousandths == thousandths.to_integral_value():
            return int(thousandths)
    except (InvalidOperation, OverflowError):
        pass
    raise _BadCell("UnitPrice", text, "an amount with at most three decimals")
