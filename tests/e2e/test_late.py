"""Late and future events through a pipeline that dies: tables hold what a plain loop says."""

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e import in_session
from tests.unit.pipeline.operators.streams import shuffled
from tests.unit.pipeline.operators.test_windowed import Visit, sessions_of

from catchwater.wire.client import Client

PARTITIONS = 3
VISITS = 1_200
EPOCH_EVENTS = 60
FUTURE = 3
YEAR_2100 = 4_102_444_800_000
HOUR = 3_600_000

MODULE = """\
from dataclasses import dataclass, field

from catchwater import function
from catchwater.operators import Windowed, session


@dataclass
class Visit:
    user: str
    id: str
    at: int
    pages: int = 1


@dataclass
class Count:
    pages: int = 0
    ids: list[str] = field(default_factory=list)


@dataclass
class Total:
    user: str
    start: int
    end: int
    pages: int
    ids: list[str]


@function(name="sessions", key="user", event_time="at", watermark="5s", dedup="id", dedup_ttl="30d",
          output_id=("user", "start"), late="too_late", poison="dead-letter")
class Sessions(Windowed[Visit, Count, Total]):
    window = session("4s")
    allowed_lateness = "30m"

    def add(self, e, acc, ctx):
        acc.pages += e.pages
        acc.ids.append(e.id)

    def merge(self, a, b):
        return Count(a.pages + b.pages, a.ids + b.ids)

    def result(self, window, acc, ctx):
        yield Total(ctx.key, window.start, window.end, acc.pages, sorted(acc.ids))
"""
FILE = """\
[pipeline]
function = "late_sessions:Sessions"
checkpoint = "checkpoint"
local = "local"
trigger = "available-now"

[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "{topic}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 60

[sink.totals]
kind = "sqlite"
path = "totals.db"
table = "totals"
mode = "upsert"
keep = "1d"

[sink.too_late]
kind = "sqlite"
path = "late.db"
table = "late"

[dead_letter]
kind = "sqlite"
path = "dead.db"
table = "dead"

[recovery]
retain = 1000
"""


class Died(Exception):
    """The driver, between the ledger and Spark's commit."""


def shuffled_with_late(draw: random.Random, visits: list[Visit]) -> list[Visit]:
    """Out of order, 5 % late, 10 % twice; some behind all windows, twice; some of the year 2100."""
    found = shuffled(draw, visits)
    for _ in range(12):
        at = draw.randrange(VISITS // 2, len(found))
        old = Visit(f"u{draw.randrange(4)}", f"old{at}", in_session.WRITTEN_MS - 2 * HOUR, 100)
        found[at:at] = [old, old]
    for _ in range(FUTURE):
        found.insert(draw.randrange(len(found)), Visit("u1", "future", YEAR_2100))
    return found


def run_dying(pipeline: in_session.Pipeline, deaths: set[int]) -> None:
    """To the end of the input; it dies in these epochs, in every other one with its local state."""

    def between(epoch: int) -> None:
        if epoch in deaths:
            deaths.remove(epoch)
            if epoch % 2:
                shutil.rmtree(pipeline.folder / "local")
            raise Died(epoch)

    pipeline.between = between
    while True:
        left = len(deaths)
        try:
            pipeline.run()
            return
        except Exception:
            if len(deaths) == left:
                raise


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_table_of_sessions_is_that_of_a_plain_loop(
    seed: int, make_broker: Callable[..., Any], tmp_path: Path
) -> None:
    draw = random.Random(seed)
    began = in_session.WRITTEN_MS
    visits = [
        Visit(f"u{draw.randrange(4)}", str(i), began + i * 1_000, draw.randrange(5))
        for i in range(VISITS)
    ]
    end = Visit("last", "last", began + 20 * HOUR)
    broker, topic = make_broker({"log.retention.ms": "-1"}), f"visits-{seed}"
    with Client(broker.bootstrap) as client:
        client.create_topics({topic: PARTITIONS})
    for partition in range(PARTITIONS):
        own = [
            e
            for e in shuffled_with_late(random.Random(seed), visits)
            if int(e.user[1]) % 3 == partition
        ]
        in_session.produce(broker.bootstrap, topic, partition, *map(asdict, own))
    (tmp_path / "late_sessions.py").write_text(MODULE)
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(bootstrap=broker.bootstrap, topic=topic))
    pipeline = in_session.Pipeline(None, tmp_path, file)
    deaths = set(draw.sample(range(1, VISITS // EPOCH_EVENTS), 6))
    run_dying(pipeline, deaths)
    in_session.produce(broker.bootstrap, topic, 0, asdict(end))
    run_dying(pipeline, deaths)
    assert not deaths

    late = [msgspec.json.decode(value, type=Visit) for (value,) in rows(tmp_path, "late", "value")]
    too_late = {e.id for e in late}
    assert len(too_late) == len(late) > 0, "each once, though it came twice"
    in_time = [e for e in visits if e.id not in too_late]
    found = rows(tmp_path, "totals", 'user, "start", "end", pages, ids')
    assert sorted((u, s, e, p, tuple(msgspec.json.decode(i))) for u, s, e, p, i in found) == [
        (t.user, t.start, t.end, t.pages, tuple(t.ids)) for t in sessions_of(in_time)
    ]
    sums: Counter[str] = Counter()
    for e in in_time:
        sums[e.user] += e.pages
    assert dict(rows(tmp_path, "totals", "user, sum(pages)", " GROUP BY user")) == sums
    dead = rows(tmp_path, "dead", "value")
    assert [b"future" in bytes(value) for (value,) in dead] == [True] * FUTURE


def rows(folder: Path, table: str, columns: str, more: str = "") -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / f"{table}.db")) as connection:
        return connection.execute(f"SELECT {columns} FROM {table}{more}").fetchall()
