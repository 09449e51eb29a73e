"""The function for real input: what customers spend, and whether they return more than they bought.

One event is one line of an invoice (`online_retail.py` reads them). Every cancellation becomes
one row: the purchases it cancels, newest first and partly where need be, and what the customer
has spent over the last 30 days. A cancellation with units left over is the alert.

Prices are whole thousandths of a pound, so sums are exact in any order.
"""

from bisect import insort
from dataclasses import dataclass, field

from catchwater import Context, Keyed, Out, function

SPEND_WINDOW_MS = 30 * 86_400_000


@dataclass
class InvoiceLine:
    """One line of an invoice; `at` is its time, milliseconds since the Unix epoch, UTC."""

    customer: str
    id: str
    at: int
    invoice: str
    stock_code: str
    quantity: int
    price_thousandths: int


@dataclass
class Cancellation:
    """Units given back, the purchases they came from, and the units nobody sold."""

    customer: str
    id: str
    rule: str
    invoice: str
    stock_code: str
    units: int
    cancels: list[tuple[str, int]]
    never_bought: int
    spend_30d_thousandths: int


@dataclass
class Customer:
    """What is remembered of a customer.

    `spend`: [time, thousandths], oldest first, all within 30 days before the last; `spend_sum` is
    their sum. `bought`: by stock code, (invoice, units not yet returned), oldest first, never 0
    units, never the same invoice twice in a row.
    """

    spend: list[list[int]] = field(default_factory=list)
    spend_sum: int = 0
    bought: dict[str, list[tuple[str, int]]] = field(default_factory=dict)


@function(
    name="retail-returns",
    version=1,
    key="customer",
    event_time="at",
    watermark="1d",
    late="process",
    dedup="id",
    dedup_ttl="3650d",
    state_ttl="3650d",
    output_id=("customer", "id", "rule"),
    needs_history="7d",
    max_restore="10m",
)
class RetailReturns(Keyed[InvoiceLine, Customer, Cancellation]):
    """Match each cancellation to the purchase it cancels."""

    def on_event(self, e: InvoiceLine, s: Customer, ctx: Context) -> Out[Cancellation]:
        """Remember a purchase; match a cancellation."""
        _spend(s, e.at, e.quantity * e.price_thousandths)
        if e.quantity > 0:
            _put_on_shelf(s, e.stock_code, e.invoice, e.quantity)
            return []
        if not e.invoice.startswith("C"):
            return []  # a stock correction: nobody returned anything
        cancels = _take_back(s, e.stock_code, -e.quantity)
        never_bought = -e.quantity - sum(units for _, units in cancels)
        return [
            Cancellation(
                customer=e.customer,
                id=e.id,
                rule="returned-more-than-bought" if never_bought else "cancellation",
                invoice=e.invoice,
                stock_code=e.stock_code,
                units=-e.quantity,
                cancels=cancels,
                never_bought=never_bought,
                spend_30d_thousandths=s.spend_sum,
            )
        ]


def _spend(s: Customer, at: int, thousandths: int) -> None:
    """Add to the rolling 30 days and let what is older fall out."""
    if s.spend and s.spend[-1][0] == at:
        s.spend[-1][1] += thousandths
    else:
        insort(s.spend, [at, thousandths])
    s.spend_sum += thousandths
    while s.spend[0][0] <= s.spend[-1][0] - SPEND_WINDOW_MS:
        s.spend_sum -= s.spend.pop(0)[1]


def _put_on_shelf(s: Customer, stock_code: str, invoice: str, units: int) -> None:
    """Remember a purchase; lines of one invoice that follow each other are one purchase."""
    purchases = s.bought.setdefault(stock_code, [])
    if purchases and purchases[-1][0] == invoice:
        units += purchases.pop()[1]
    purchases.append((invoice, units))


def _take_back(s: Customer, stock_code: str, units: int) -> list[tuple[str, int]]:
    """Take units from the newest purchases of this article; the (invoice, units) taken."""
    purchases = s.bought.get(stock_code, [])
    taken = []
    while units and purchases:
        invoice, left = purchases.pop()
        count = min(units, left)
        if left > count:
            purchases.append((invoice, left - count))
        taken.append((invoice, count))
        units -= count
    if not purchases:
        s.bought.pop(stock_code, None)
    return taken
