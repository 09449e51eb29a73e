"""Pipelines with Avro behind the ids of a schema registry that comes and goes, read and written."""

import datetime as dt
import json
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e.in_session import WRITTEN_MS, Pipeline, produce, read
from tests.schema_registry import FakeRegistry, schema_registry

from catchwater.config import CatchwaterError
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.pipeline import Pipeline as Declared
from catchwater.pipeline.run import config
from catchwater.values import registry as registries
from catchwater.values.registry import SchemaRefused
from catchwater.values.subjects import EventsUnfit
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

fastavro = pytest.importorskip("fastavro")

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

AT_MS = 1_650_000_000_000
FIELDS: list[dict[str, Any]] = [
    {"name": "card", "type": "string"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
]
FIRST = {"type": "record", "name": "Txn", "fields": FIELDS}
SECOND = {**FIRST, "fields": [*FIELDS, {"name": "place", "type": "string"}]}

FUNCTION = """
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Txn:
    card: str
    at: int
    place: str = "unknown"

@dataclass
class Seen:
    n: int = 0

@dataclass
class Count:
    card: str
    n: int
    at: int
    place: str

@function(name="counts", key="card", event_time="at", late="process", max_future=None)
class Counts(Keyed[Txn, Seen, Count]):
    def on_event(self, e: Txn, s: Seen, ctx: Context) -> Out[Count]:
        s.n += 1
        return [Count(e.card, s.n, e.at, e.place)]
"""

FILE = """\
[pipeline]
name = "counts-{on}"
function = "counts:Counts"
checkpoint = "checkpoint"
local = "local"
trigger = "available-now"
poison = "dead-letter"
restarts = 1
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "txns-{on}"
startingOffsets = "earliest"
valueFormat = "avro"
"schema.registry.url" = "{registry}"
"schema.registry.folder" = "schemas"
[sink.out]
topic = "counts-{on}"
[dead_letter]
topic = "dead-{on}"
"""


def value(schema_id: int, schema: dict[str, Any], **fields: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(schema))), fields)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with schema_registry() as fake:
        fake.register(1, FIRST)
        yield fake


@pytest.mark.parametrize("on", ["here", pytest.param("spark", marks=pytest.mark.slow)])
def test_events_are_read_by_their_schemas_and_none_is_skipped_while_the_registry_is_away(
    on: str,
    make_broker: Callable[..., Any],
    registry: FakeRegistry,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = request.getfixturevalue("spark") if on == "spark" else None
    if on == "here":
        monkeypatch.setattr(registries, "PATIENCE_S", 0.1)
    bootstrap = make_broker({"log.retention.ms": "-1"}).bootstrap
    topic = f"txns-{on}"
    with Client(bootstrap) as client:
        client.create_topics({topic: 1})
    (tmp_path / "counts.py").write_text(FUNCTION)
    file = tmp_path / "pipeline.toml"
    file.write_text(FILE.format(on=on, bootstrap=bootstrap, registry=registry.url))
    pipeline = Pipeline(spark, tmp_path, file)
    at = WRITTEN_MS * 1000

    def found() -> list[tuple[str, int, int, str]]:
        outputs = [msgspec.json.decode(each) for _, each in read(bootstrap, f"counts-{on}")]
        return [(each["card"], each["n"], each["at"], each["place"]) for each in outputs]

    registry.register(3, {**FIRST, "fields": FIELDS[1:]}, f"{topic}-value")
    with pytest.raises(EventsUnfit, match=f"'{topic}-value'.*must have the field 'card'"):
        pipeline.run()
    planned = Declared.from_file(file, {}).plan().problems
    assert [each.verdict for each in planned if each.what == "events"] == ["fail"]
    registry.register(1, FIRST, f"{topic}-value", 2)
    bad = [b"no frame", b"\0\0\0\0\x63x", value(1, FIRST, card="a", at=at)[:-1]]
    produce(bootstrap, topic, 0, value(1, FIRST, card="a", at=at), *bad)
    pipeline.run()
    assert found() == [("a", 1, WRITTEN_MS, "unknown")]
    dead = [each for _, each in read(bootstrap, f"dead-{on}")]
    assert len(dead) == len(bad)

    # What is known goes on without the registry; what is not waits, and nothing is skipped.
    registry.status = 503
    produce(bootstrap, topic, 0, value(1, FIRST, card="a", at=at))
    pipeline.run()
    assert found()[1:] == [("a", 2, WRITTEN_MS, "unknown")]
    produce(bootstrap, topic, 0, value(2, SECOND, card="a", at=at, place="here"))
    with pytest.raises(CatchwaterError, match="does not give schema id 2: it answers 503"):
        pipeline.run()
    assert len(found()) == 2
    registry.status = 200
    # A schema that does not fit is no reason not to start again.
    registry.register(3, {**FIRST, "fields": FIELDS[1:]}, f"{topic}-value", 3)
    registry.register(2, SECOND)
    pipeline.run()
    assert found()[2:] == [("a", 3, WRITTEN_MS, "here")]
    assert len(read(bootstrap, f"dead-{on}")) == len(bad)


OUTPUTS = {
    "type": "record",
    "name": "Count",
    "fields": [
        {"name": "card", "type": "string"},
        {"name": "n", "type": "int"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "place", "type": "string"},
        {"name": "extra", "type": "string", "default": "none"},
    ],
}
TYPED_SINK = """
valueFormat = "avro"
valueSchema = "count.avsc"
"schema.registry.url" = "{registry}"
"schema.registry.register" = {register}
"""


@pytest.mark.parametrize("on", ["here", pytest.param("spark", marks=pytest.mark.slow)])
def test_outputs_are_written_by_their_schema_also_again_and_while_the_registry_is_away(
    on: str,
    make_broker: Callable[..., Any],
    registry: FakeRegistry,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spark = request.getfixturevalue("spark") if on == "spark" else None
    monkeypatch.setattr(registries, "PATIENCE_S", 0.1)
    name, subject = f"out-{on}", f"counts-out-{on}-value"
    bootstrap = make_broker({"log.retention.ms": "-1"}).bootstrap
    with Client(bootstrap) as client:
        client.create_topics({f"txns-{name}": 1})
    (tmp_path / "counts.py").write_text(FUNCTION)
    (tmp_path / "count.avsc").write_text(json.dumps(OUTPUTS))

    def pipeline(register: str) -> Pipeline:
        sink = TYPED_SINK.format(registry=registry.url, register=register)
        text = FILE.format(on=name, bootstrap=bootstrap, registry=registry.url)
        file = tmp_path / "pipeline.toml"
        file.write_text(text.replace("[dead_letter]", sink + "[dead_letter]"))
        return Pipeline(spark, tmp_path, file)

    at = WRITTEN_MS * 1000
    produce(bootstrap, f"txns-{name}", 0, value(1, FIRST, card="a", at=at))
    with pytest.raises(SchemaRefused, match=rf"'{subject}' .* does not have the schema"):
        pipeline("false").run()
    assert subject not in registry.subjects, "nothing is registered in silence"

    def crash(epoch: int) -> None:
        raise CatchwaterError("The driver crashed.")

    first = pipeline("true")
    first.between = crash
    with pytest.raises(CatchwaterError, match="The driver crashed"):
        first.run()
    registry.status = 503
    produce(bootstrap, f"txns-{name}", 0, value(1, FIRST, card="a", at=at))
    pipeline("true").run()
    (schema_id,) = registry.subjects[subject].values()
    assert json.loads(registry.schemas[schema_id]["schema"]) == OUTPUTS
    written = [each for _, each in read(bootstrap, f"counts-{name}")]
    assert [each[:5] for each in written] == 2 * [b"\0" + schema_id.to_bytes(4, "big")]
    rows = [fastavro.schemaless_reader(BytesIO(each[5:]), OUTPUTS, None) for each in written]
    moment = dt.datetime.fromtimestamp(WRITTEN_MS / 1000, dt.UTC)
    one = {"card": "a", "at": moment, "place": "unknown", "extra": "none"}
    assert rows == [{**one, "n": 1}, {**one, "n": 2}]
    opened = OpenPipeline(config.load(first.file, {})).with_log()
    sink = opened.sinks["out"]
    staged = [row.record for epoch in sink.truth.epochs() for row in sink.truth.rows(epoch)]
    assert [each.value for each in staged] == written, "what was staged is what is there"
    opened.close()


LOOKS_UP = """
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Txn:
    card: str
    at: int

@dataclass
class Card:
    owner: str
    since: int

@dataclass
class Seen:
    n: int = 0

@dataclass
class Owned:
    card: str
    owner: str
    since: int

@function(name="owned", key="card", event_time="at", late="process", max_future=None,
          tables={"cards": Card})
class Owners(Keyed[Txn, Seen, Owned]):
    def on_event(self, e: Txn, s: Seen, ctx: Context) -> Out[Owned]:
        row = ctx.table("cards").get(e.card)
        return [Owned(e.card, row.owner, row.since) if row else Owned(e.card, "nobody", 0)]
"""
TABLE = """
[table.cards]
topic = "cards-typed"
valueFormat = "avro"
"schema.registry.url" = "{registry}"
"""
CARD = {
    "type": "record",
    "name": "Card",
    "fields": [
        {"name": "owner", "type": "string"},
        {"name": "since", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "more", "type": "string"},
    ],
}


def test_rows_of_a_table_are_read_by_their_schemas(
    make_broker: Callable[..., Any], registry: FakeRegistry, tmp_path: Path
) -> None:
    bootstrap = make_broker({"log.retention.ms": "-1"}).bootstrap
    with Client(bootstrap) as client:
        client.create_topics({"txns-table": 1, "cards-typed": 1})
    registry.register(5, CARD, "cards-typed-value")
    (tmp_path / "owners.py").write_text(LOOKS_UP)
    file = tmp_path / "pipeline.toml"
    text = FILE.format(on="table", bootstrap=bootstrap, registry=registry.url)
    text = text.replace("counts:Counts", "owners:Owners") + TABLE.format(registry=registry.url)
    file.write_text(text)
    pipeline = Pipeline(None, tmp_path, file)
    row = value(5, CARD, owner="Ann", since=AT_MS, more="x")
    batch = encode_batch([(key, each, WRITTEN_MS, ()) for key, each in [(b"a", row), (b"b", b"?")]])
    with Client(bootstrap) as client:
        client.produce([(("cards-typed", 0), batch)])
    at = WRITTEN_MS * 1000
    events = [value(1, FIRST, card=card, at=at) for card in "ab"]
    produce(bootstrap, "txns-table", 0, *events)
    pipeline.run()
    outputs = [msgspec.json.decode(each) for _, each in read(bootstrap, "counts-table")]
    assert sorted((each["card"], each["owner"], each["since"]) for each in outputs) == [
        ("a", "Ann", AT_MS),
        ("b", "nobody", 0),
    ]
    assert [each for _, each in read(bootstrap, "dead-table")] == [b"?"]
