"""`catchwater init`: a pipeline small enough to read in a minute, with its test, to start from."""

from pathlib import Path
from typing import Annotated

import typer

from catchwater.cli.console import noun, talk
from catchwater.config import CatchwaterError

app = noun(has_verbs=False)

FUNCTION = '''\
"""Alert on a large payment that follows a small one on the same card within a minute."""

from dataclasses import dataclass

from catchwater import Context, Keyed, Out, function


@dataclass
class Txn:
    card: str
    id: str
    at: int  # event time, milliseconds since 1970
    amount: float


@dataclass
class Alert:
    card: str
    id: str
    rule: str


@dataclass
class Risk:
    small_at: int = 0


@function(
    name="card-risk",
    version=1,
    key="card",
    event_time="at",
    watermark="30s",
    dedup="id",
    dedup_ttl="1d",
    state_ttl="30d",
    output_id=("card", "id", "rule"),
    needs_history="7d",
    max_restore="10m",
)
class CardRisk(Keyed[Txn, Risk, Alert]):
    def on_event(self, e: Txn, s: Risk, ctx: Context) -> Out[Alert]:
        if e.amount > 500 and s.small_at and e.at - s.small_at < 60_000:
            yield Alert(e.card, e.id, "small-then-large")
        if e.amount < 1:
            s.small_at = e.at
            ctx.timer("forget", e.at + 60_000)

    def on_timer(self, name: str, at: int, s: Risk, ctx: Context) -> Out[Alert]:
        s.small_at = 0
        return ()
'''

TEST = '''\
"""Run with `pytest`: no Spark, no broker."""

from card_risk import Alert, CardRisk, Txn

from catchwater.testing import Harness


def test_small_then_large_alerts_once():
    h = Harness(CardRisk)
    small, large = Txn("c1", "1", 1000, 0.5), Txn("c1", "2", 2000, 900.0)
    assert h.send(small, large, large) == [Alert("c1", "2", "small-then-large")]


def test_a_minute_later_is_forgotten():
    h = Harness(CardRisk)
    h.send(Txn("c1", "1", 1000, 0.5))
    h.advance_watermark(70_000)
    assert h.send(Txn("c1", "2", 75_000, 900.0)) == []
'''

PIPELINE = """\
# catchwater pipeline run pipeline.toml

[pipeline]
function = "card_risk:CardRisk"
checkpoint = "checkpoint"
max_staleness = "1m"            # a promise: no record waits longer

[source]
"kafka.bootstrap.servers" = "127.0.0.1:9092"
subscribe = "payments"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 100000

[sink.alerts]
topic = "alerts"
"""

FILES = {"card_risk.py": FUNCTION, "test_card_risk.py": TEST, "pipeline.toml": PIPELINE}


class AlreadyThere(CatchwaterError):
    """A file that would have been written exists."""


@app.command()
def init(
    directory: Annotated[Path, typer.Argument(help="Where to write.")] = Path(),
) -> None:
    """Write a function, its test and a pipeline file; nothing that exists is touched."""
    for name in FILES:
        if (directory / name).exists():
            raise AlreadyThere(
                f"{directory / name} exists already; nothing was written.",
                hint="name an empty directory: catchwater init DIRECTORY",
            )
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        (directory / name).write_text(text)
        talk(f"wrote {directory / name}")
    change = "" if directory == Path() else f"cd {directory}, "
    talk(f"next: {change}pytest, then catchwater dev: it runs a broker and the pipeline here,")
    talk("takes a line of JSON as an event, and goes on with what you save")
