"""What the right answer is: each demo as one plain loop over its input, with no pipeline in it.

Written from the words of the rules, sharing no code with the functions, so that agreement means
something. Relies on the whole input passing by once, in arrival order, in one process.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import groupby, repeat
from pathlib import Path

from catchwater.demo.online_retail import read_rows
from catchwater.drill.rows import canonical
from catchwater.drill.workload import Payment


@dataclass
class Expected:
    """The rows a sink must hold, as canonical JSON with their number, and what must be dropped."""

    rows: Counter[bytes] = field(default_factory=Counter)
    events: int = 0
    duplicates: int = 0
    late: int = 0

    def add(self, row: dict[str, object]) -> None:
        """Expect one more such row."""
        self.rows[canonical(row)] += 1


def card_risk(payments: Iterable[Payment]) -> Expected:
    """Every payment above 500 within a minute of the card's last one below 1.

    A payment more than 30 s older than the newest is too late to count, and a repeated id counts
    once.
    """
    expected = Expected()
    newest = 0
    seen: set[str] = set()
    last_small: dict[str, int] = {}
    for payment in payments:
        expected.events += 1
        newest = max(newest, payment.at)
        if newest - payment.at > 30_000:
            expected.late += 1
        elif payment.id in seen:
            expected.duplicates += 1
        else:
            seen.add(payment.id)
            small_at = last_small.get(payment.card)
            if payment.amount > 500 and small_at is not None and payment.at < small_at + 60_000:
                expected.add({"card": payment.card, "id": payment.id, "rule": "small-then-large"})
            if payment.amount < 1:
                last_small[payment.card] = payment.at
    return expected


def retail(path: Path) -> Expected:
    """Every cancellation with the purchases it undoes, straight from the rows of the file.

    A customer's shelf holds one invoice number for each unit bought and kept; a cancellation takes
    units from the top. Spend counts what lies less than 30 days before the customer's newest row.
    """
    expected = Expected()
    seen: set[str] = set()
    shelves: dict[tuple[str, str], list[str]] = defaultdict(list)
    paid: dict[str, list[tuple[datetime, Decimal]]] = defaultdict(list)
    for row, line in read_rows(path):
        expected.events += 1
        if line.id in seen:
            expected.duplicates += 1
            continue
        seen.add(line.id)
        customer = row["CustomerID"].removesuffix(".0") or "guest:" + row["InvoiceNo"]
        units = int(row["Quantity"])
        moment = datetime.fromisoformat(row["InvoiceDate"])
        paid[customer].append((moment, units * Decimal(row["UnitPrice"])))
        shelf = shelves[customer, row["StockCode"]]
        if units > 0:
            shelf.extend(repeat(row["InvoiceNo"], units))
        elif row["InvoiceNo"].startswith("C"):
            returned = [shelf.pop() for _ in range(min(-units, len(shelf)))]
            never_bought = -units - len(returned)
            expected.add(
                {
                    "customer": customer,
                    "id": line.id,
                    "rule": "returned-more-than-bought" if never_bought else "cancellation",
                    "invoice": row["InvoiceNo"],
                    "stock_code": row["StockCode"],
                    "units": -units,
                    "cancels": [[invoice, len(list(run))] for invoice, run in groupby(returned)],
                    "never_bought": never_bought,
                    "spend_30d_thousandths": int(_spend_30d(paid[customer]) * 1000),
                }
            )
    return expected


def _spend_30d(paid: list[tuple[datetime, Decimal]]) -> Decimal:
    newest = max(moment for moment, _ in paid)
    return sum((pounds for at, pounds in paid if at > newest - timedelta(days=30)), Decimal(0))
