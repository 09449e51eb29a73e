"""Values against their topic's schema, by a registry that answers late, wrongly or not at all."""

import json
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

import pytest
from tests.conftest import until
from tests.schema_registry import FakeRegistry, schema_registry

from catchwater.broker import value_checks
from catchwater.broker.value_checks import ValueChecks
from catchwater.broker_config import BrokerConfig
from catchwater.catalog.rows import Topic
from catchwater.clock import SYSTEM
from catchwater.log.topic_settings import VALUE_FORMAT, VALUE_SCHEMA
from catchwater.log.write.prepare import Undecided

fastavro = pytest.importorskip("fastavro")

SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Txn",
    "fields": [{"name": "card", "type": "string"}, {"name": "n", "type": "int"}],
}


def value(schema_id: int, **fields: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(json.dumps(SCHEMA))), fields)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


GOOD = value(7, card="a", n=1)


def topic(**config: str) -> Topic:
    return Topic(id=b"t" * 16, name="payments", partitions=1, config=config)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRegistry]:
    monkeypatch.setattr(value_checks, "_PAUSE_S", 0.01)
    monkeypatch.setattr(value_checks, "_MISSING_S", 0.01)
    with schema_registry() as fake:
        fake.register(7, SCHEMA, "payments-value")
        yield fake


def check(registry: FakeRegistry, validation: str) -> Callable[[bytes], str | None]:
    config = BrokerConfig(catchwater_schema_registry_url=registry.url)
    return ValueChecks(config, SYSTEM).of(topic(), validation)


def decided(fit: Callable[[bytes], str | None], given: bytes) -> str | None:
    """What is said once something is."""
    found: list[str | None] = []

    def ask() -> bool:
        try:
            found.append(fit(given))
        except Undecided:
            return False
        return True

    until(ask)
    return found[0]


def test_a_value_is_taken_once_its_schema_is_known_and_the_registry_asked_once(
    registry: FakeRegistry,
) -> None:
    fit = check(registry, "schema")
    registry.pause.clear()
    for _ in range(3):
        with pytest.raises(Undecided, match="id 7 is not known here yet: it is being asked for"):
            fit(GOOD)
    registry.pause.set()
    assert decided(fit, GOOD) is None
    registry.status = 500
    assert fit(GOOD) is None
    assert registry.asked == ["/schemas/ids/7/versions", "/schemas/ids/7"]


@pytest.mark.parametrize(
    ("given", "by_id", "by_schema"),
    [
        (b"", "it has 0 bytes", "it has 0 bytes"),
        (b'{"card": 1}', "magic byte 0", "magic byte 0"),
        (GOOD[:-1], None, ""),
        (GOOD + b"x", None, "1 bytes stand behind"),
        (value(8, card="a", n=1), "is none of 'payments-value'", "is none of 'payments-value'"),
        (value(99, card="a", n=1), "no schema with the id 99", "no schema with the id 99"),
        (value(10, card="a", n=1), "cannot be used", "cannot be used"),
        (b"\0\0\0\0\x0b{]", None, "malformed"),
    ],
)
def test_what_does_not_fit_is_said(
    registry: FakeRegistry, given: bytes, by_id: str | None, by_schema: str
) -> None:
    registry.register(8, SCHEMA, "other-value")
    registry.register(10, {"type": "nonsense"}, "payments-value", 2)
    registry.register(11, {}, "payments-value", 3, schemaType="JSON")
    said = decided(check(registry, "schema"), given)
    assert said is not None and by_schema in said
    said = decided(check(registry, "id"), given)
    assert said is None if by_id is None else by_id in str(said)


def test_while_the_registry_is_away_nothing_is_decided_and_then_it_is(
    registry: FakeRegistry,
) -> None:
    registry.status = 503
    fit = check(registry, "id")

    def reason() -> str:
        with pytest.raises(Undecided) as undecided:
            fit(GOOD)
        return str(undecided.value)

    until(lambda: "it answers 503" in reason())
    assert registry.url in reason()
    registry.status = 200
    assert decided(fit, GOOD) is None


def test_a_schema_that_comes_late_is_found(registry: FakeRegistry) -> None:
    fit, late = check(registry, "id"), value(9, card="a", n=1)
    assert "no schema with the id 9" in str(decided(fit, late))
    registry.register(9, SCHEMA, "payments-value", 2)
    until(lambda: decided(fit, late) is None)


def test_a_schema_that_a_topic_declares_needs_no_registry() -> None:
    checks = ValueChecks(BrokerConfig(), SYSTEM)
    declares = topic(**{VALUE_FORMAT: "avro", VALUE_SCHEMA: json.dumps(SCHEMA)})
    fit = checks.of(declares, "declared")
    assert fit(GOOD[5:]) is None
    assert fit(GOOD[5:-1]) is not None
    assert "1 bytes stand behind" in str(fit(GOOD[5:] + b"x"))
    assert "declares no schema" in str(checks.of(topic(), "declared")(b""))
    other = topic(**{VALUE_FORMAT: "json", VALUE_SCHEMA: "card string"})
    assert checks.of(other, "declared")(b'{"card": "a"}') is None
    assert checks.of(other, "declared")(b'{"card": 1}') is not None
