"""A small job in a pipeline: words counted by the hour, and events that name their records."""

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from examples import small_jobs
from tests.e2e.in_session import WRITTEN_MS, Pipeline, produce, read

from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

HOUR_MS = 3_600_000
LINES = 150

FILE = """\
[pipeline]
name = "{name}-{on}"
functions = {functions}
checkpoint = "checkpoint"
local = "local"
trigger = "available-now"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "lines"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 60
[sink.out]
topic = "{name}-{on}"
"""

PLACES = """
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function
from catchwater.pipeline.functions.spec import Nothing

@dataclass
class Line:
    text: str
    at: int

@dataclass
class Place:
    text: str
    topic: str
    partition: int
    offset: int
    timestamp: int

@function(name="places", key="text", event_time="at", late="process", max_future=None)
class Places(Keyed[Line, Nothing, Place]):
    def on_event(self, e: Line, s: Nothing, ctx: Context) -> Out[Place]:
        return [Place(e.text, ctx.topic, ctx.partition, ctx.offset, ctx.timestamp or 0)]
"""


def lines() -> list[small_jobs.Line]:
    """Of five hours, and one so late that all of them have ended."""
    draw = random.Random(5)
    words = ["to", "be", "or", "not", "that", "is"]
    found = [
        small_jobs.Line(" ".join(draw.choices(words, k=4)), WRITTEN_MS + n * 5 * HOUR_MS // LINES)
        for n in range(LINES)
    ]
    return [*found, small_jobs.Line("end", WRITTEN_MS + 20 * HOUR_MS)]


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., Any]) -> Any:
    found = make_broker({"log.retention.ms": "-1"})
    with Client(found.bootstrap) as client:
        client.create_topics({"lines": 2})
    *most, last = map(msgspec.json.encode, lines())
    # The last of each is as late, so that neither partition holds the watermark back.
    for partition in (0, 1):
        produce(found.bootstrap, "lines", partition, *most[partition::2], last)
    return found


@pytest.mark.parametrize("on", ["here", "spark"])
def test_words_are_counted_and_events_know_their_records(
    on: str, broker: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    spark = request.getfixturevalue("spark") if on == "spark" else None
    for name, functions in (
        ("counts", '["small_jobs:words", "small_jobs:Counts"]'), ("places", '["places:Places"]'),
    ):  # fmt: skip
        folder = tmp_path / name
        folder.mkdir()
        (folder / "small_jobs.py").write_text(Path(small_jobs.__file__).read_text())
        (folder / "places.py").write_text(PLACES)
        file = folder / "pipeline.toml"
        file.write_text(
            FILE.format(name=name, functions=functions, bootstrap=broker.bootstrap, on=on)
        )
        Pipeline(spark, folder, file).run()

    expected: Counter[tuple[str, int]] = Counter()
    for line in lines()[:-1]:
        expected.update((word, line.at - line.at % HOUR_MS) for word in line.text.split())
    found = [msgspec.json.decode(value) for _, value in read(broker.bootstrap, f"counts-{on}")]
    assert {(each["word"], each["start"]): each["n"] for each in found} == expected
    assert len(found) == len(expected)

    places = [msgspec.json.decode(value) for _, value in read(broker.bootstrap, f"places-{on}")]
    sent = [each.text for each in lines()]
    assert sorted((each["partition"], each["offset"], each["text"]) for each in places) == [
        (partition, offset, text)
        for partition in (0, 1)
        for offset, text in enumerate([*sent[:-1][partition::2], sent[-1]])
    ]
    assert {(each["topic"], each["timestamp"]) for each in places} == {("lines", WRITTEN_MS)}
