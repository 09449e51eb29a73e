"""The function that drills run: written out as a file, as a user's is, and known by its rows alone.

Each payment becomes a row with its number and the sum on its card. A payment that is lost, counted
twice or out of turn changes every later row of its card. Version 2 is a bad one: it counts a
cent too many. `workload.totals` knows the right rows.
"""

from pathlib import Path

MODULE = "card_totals"
FUNCTION = f"{MODULE}:CardTotals"
NAME = "card-totals"

_SOURCE = '''"""Payments of each card, numbered and summed up."""

from dataclasses import dataclass
from hashlib import shake_256

from catchwater import Context, Keyed, Out, function


@dataclass
class Payment:
    card: str
    id: str
    at: int
    amount: float


@dataclass
class Total:
    n: int = 0
    cents: int = 0
    kept: bytes = b""


@dataclass
class Row:
    card: str
    n: int
    cents: int


@function(
    name="card-totals", version={version}, key="card", event_time="at", watermark="30s",
    dedup="id", dedup_ttl="1d", output_id=("card", "n"),
)
class CardTotals(Keyed[Payment, Total, Row]):
    def on_event(self, e: Payment, s: Total, ctx: Context) -> Out[Row]:
        s.n += 1
        s.cents += round(e.amount * 100) + {error}
        if len(s.kept) < {keep_bytes}:
            s.kept = shake_256(e.card.encode()).digest({keep_bytes})
        return [Row(e.card, s.n, s.cents)]
'''


def write_function(folder: Path, *, version: int = 1, keep_bytes: int = 0) -> None:
    """Write the function beside the pipeline's file; it keeps so many bytes for each card."""
    source = _SOURCE.format(version=version, keep_bytes=keep_bytes, error=version - 1)
    (folder / f"{MODULE}.py").write_text(source)
