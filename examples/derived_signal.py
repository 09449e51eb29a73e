"""A signal that is in no event: a cart was filled and left.

Something is put into a cart, nothing is taken out, and half an hour later nothing has been paid:
that is worth a message to the customer. A payment in time is worth a count of how long it took.
"""

from dataclasses import dataclass
from typing import Literal

from catchwater import Context, Out, function
from catchwater.operators import Match, Pattern, begin


@dataclass
class Click:
    """What a customer does in the shop; `at` is its time in milliseconds since 1970."""

    customer: str
    id: str
    at: int
    action: Literal["look", "add", "empty", "pay"]
    article: str = ""


@dataclass
class Signal:
    """What became of a cart, and how long after its first article (ms)."""

    customer: str
    cart: str
    kind: Literal["paid", "abandoned"]
    after_ms: int


HALF_AN_HOUR_MS = 30 * 60_000


def adds(e: Click, found: Match[Click]) -> bool:
    """An article goes into the cart."""
    return e.action == "add"


def empties(e: Click, found: Match[Click]) -> bool:
    """The customer no longer wants any of it."""
    return e.action == "empty"


def pays(e: Click, found: Match[Click]) -> bool:
    """The cart is paid."""
    return e.action == "pay"


@function(
    name="carts",
    key="customer",
    event_time="at",
    watermark="1m",
    dedup="id",
    output_id=("customer", "cart"),
)
class Carts(Pattern[Click, Signal]):
    """A cart is known by the click that began it; what is added later belongs to it."""

    steps = begin("filled", adds).unless(empties).then("paid", pays)
    within = "30m"
    max_partial = 1

    def match(self, found: Match[Click], ctx: Context) -> Out[Signal]:
        """Paid in time."""
        first, paid = found["filled"], found["paid"]
        yield Signal(ctx.key, first.id, "paid", paid.at - first.at)

    def timed_out(self, found: Match[Click], ctx: Context) -> Out[Signal]:
        """Half an hour, and no payment."""
        yield Signal(ctx.key, found["filled"].id, "abandoned", HALF_AN_HOUR_MS)
