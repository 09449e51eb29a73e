"""What the harness says of a function is what a pipeline makes of it: the same vectors on both.

With late, doubled, undecodable and unbearable events; on real Spark, and by the same code without.
"""

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.e2e import vectored
from tests.e2e.in_session import Pipeline, produce, read
from tests.e2e.vectored import Accounts, Kind, Paid

from catchwater.testing import Harness
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

EVENTS, AN_EPOCH = 1_200, 100

FILE = """\
[pipeline]
name = "accounts-{on}"
function = "vectored:Accounts"
checkpoint = "checkpoint"
local = "local"
trigger = "available-now"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "payments"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {an_epoch}
[sink.told]
topic = "{on}-told"
"""


def sent() -> list[bytes]:
    """5 % late, 10 % twice, some in disorder, some unreadable."""
    draw = random.Random(11)
    found: list[bytes] = []
    for n in range(EVENTS):
        account = UUID(int=draw.randrange(9))
        late = draw.random() < 0.05
        at = 10_000 + n * 10 - draw.randrange(400) - 3_000 * late
        event = Paid(account, draw.choice(list(Kind)), str(n), at, draw.randrange(1_000))
        found.append(msgspec.json.encode(event))
        if draw.random() < 0.1:
            found.append(draw.choice(found[-50:]))
        if n % 200 == 7:
            found.append(b'{"account": "nobody"}')
    return found


@pytest.fixture(scope="module")
def harness() -> Harness:
    """The function run in epochs as large as the pipeline's, all of them kept."""
    harness, events = Harness(Accounts), sent()
    for start in range(0, len(events), AN_EPOCH):
        harness.send(*events[start : start + AN_EPOCH])
    return harness


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., Any]) -> Any:
    found = make_broker({"log.retention.ms": "-1"})
    with Client(found.bootstrap) as client:
        client.create_topics({"payments": 1})
    produce(found.bootstrap, "payments", 0, *sent())
    return found


@pytest.mark.parametrize("on", ["here", "spark"])
def test_a_pipeline_gives_what_the_harness_gives(
    on: str, harness: Harness, broker: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "vectored.py").write_text(Path(vectored.__file__).read_text())
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(bootstrap=broker.bootstrap, on=on, an_epoch=AN_EPOCH))
    spark = request.getfixturevalue("spark") if on == "spark" else None
    pipeline = Pipeline(spark, tmp_path, file)
    pipeline.run()

    vectors = harness.vectors()
    expected, found = defaultdict(list), defaultdict(list)
    for vector in vectors:
        for output in vector["outputs"]:
            expected[msgspec.json.decode(output)["account"]].append(output)
    for _, value in read(broker.bootstrap, f"{on}-told"):
        found[msgspec.json.decode(value)["account"]].append(value.decode())
    assert {key: sorted(told) for key, told in found.items()} == {
        key: sorted(told) for key, told in expected.items()
    }
    for field, count in (
        ("late", harness.late), ("duplicates", harness.duplicates),
        ("poisoned", len(harness.poisoned)),
    ):  # fmt: skip
        assert sum(entry.total(field) for entry in pipeline.epochs) == count > 0, field
    last = pipeline.epochs[-1]
    assert (last.poisoned, last.total("keys")) == (len(harness.poisoned), 18)


def test_the_vectors_hold_after_crashes_and_in_other_orders(harness: Harness) -> None:
    for at in range(0, len(harness.vectors()), 5):
        harness.crash_and_restore(at=at)
    for event in range(0, EVENTS, 300):
        harness.crash_and_restore(event=event)
    harness.check_replay(orders=3)
