"""Fields that a topic declares as dropped, masked or hashed, wherever its records come from there.

A real broker; the pipeline's half of Spark is played in the test's process.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.test_encryption import replayed_by
from tests.conftest import until
from tests.e2e.in_session import Pipeline, produce, read

from catchwater.replay.control import Control, ControlRefused
from catchwater.values.policy import OPAQUE, SECRET
from catchwater.wire.client import Client, RequestRefused

pytestmark = pytest.mark.spark

FIELDS = "card=hash, owner.name=mask, cvv=drop"
FUNCTION = """\
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Order:
    card: str
    n: int
    at: int
    cvv: int = 0

@dataclass
class Seen:
    card: str = ""

@dataclass
class Row:
    card: str
    cvv: int
    n: int

@function(name="fields", version=1, key="card", event_time="at", late="process",
          poison="dead-letter")
class Fields(Keyed[Order, Seen, Row]):
    def on_event(self, e: Order, s: Seen, ctx: Context) -> Out[Row]:
        if e.n == 3:
            raise ValueError("three")
        s.card = e.card
        return [Row(e.card, e.cvv, e.n)]
"""
FILE = """\
[pipeline]
name = "{module}"
function = "{module}:Fields"
checkpoint = "checkpoint"
local = "local"
trigger = "available-now"
shards = 2
[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "orders"
startingOffsets = "earliest"
{more}
[sink.rows]
topic = "{rows}"
[dead_letter]
topic = "{letters}"
"""
SECRETS = (b"4111-", b"Ann ", b"999")


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SECRET, "0123456789abcdef")


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., Any]) -> Iterator[Any]:
    made = make_broker({
        "catchwater.pack.interval.ms": "200", "catchwater.pack.min.bytes": "1",
        "log.retention.ms": "-1",
    })  # fmt: skip
    with Client(made.bootstrap) as client:
        client.create_topics({"orders": 1}, {"catchwater.fields": FIELDS})
    for n in range(8):
        order = {"card": f"4111-{n % 2}", "owner": {"name": f"Ann {n}", "id": n}, "cvv": 999}
        produce(made.bootstrap, "orders", 0, order | {"n": n, "at": 1_700_000_000_000 + n})
    produce(made.bootstrap, "orders", 0, b"4111- is no JSON")
    until(lambda: any((made.data_dir / "objects").rglob("*.seg")))
    yield made


def check(values: list[bytes]) -> None:
    assert len(values) == 9 and values[8] == OPAQUE
    assert not [value for value in values if any(each in value for each in SECRETS)]
    found = [json.loads(value) for value in values[:8]]
    assert [each["owner"] for each in found] == [{"name": "***", "id": n} for n in range(8)]
    assert len({each["card"] for each in found}) == 2 and "cvv" not in found[0]


@pytest.mark.parametrize("path", ["direct", "kafka"])
def test_a_replay_keeps_the_policy_on_every_path(broker: Any, path: str) -> None:
    options = {"kafka.bootstrap.servers": broker.bootstrap, "catchwater.read": path}
    check(replayed_by(options | {"subscribe": "orders"}))


def test_a_replay_without_a_broker_keeps_it_too(broker: Any) -> None:
    check(replayed_by({"catchwater.catalog": str(broker.data_dir), "subscribe": "orders"}))


@pytest.mark.parametrize("path", ["auto", "kafka"])
def test_function_sink_and_dead_letters_never_see_more(
    broker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    module, file = f"fields_{path}", tmp_path / "pipeline.toml"
    (tmp_path / f"{module}.py").write_text(FUNCTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    rows, letters = f"rows-{path}", f"letters-{path}"
    file.write_text(
        FILE.format(
            module=module, bootstrap=broker.bootstrap, rows=rows, letters=letters,
            more=f'catchwater.read = "{path}"',
        )
    )  # fmt: skip
    Pipeline(None, tmp_path, file).run()
    found = read(broker.bootstrap, rows)
    dead = read(broker.bootstrap, letters)
    assert (len(found), len(dead)) == (7, 2)
    assert {json.loads(value)["cvv"] for _, value in found} == {0}
    assert OPAQUE in {value for _, value in dead}
    everything = [part for each in (*found, *dead) for part in (*each[0].values(), each[1])]
    everything += [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not [part for part in everything if b"4111-" in part or b"Ann " in part]


def test_what_has_not_its_form_is_refused(broker: Any) -> None:
    with Client(broker.bootstrap) as client, pytest.raises(RequestRefused, match="cannot be"):
        client.create_topics({"wrong": 1}, {"catchwater.fields": "card=keep"})
    with pytest.raises(ControlRefused):
        Control(broker.control_url).request("GET", "/api/v1/topics/wrong")
