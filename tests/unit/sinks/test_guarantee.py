"""What each combination is worth; what cannot be is refused with what to choose."""

import pytest

from catchwater.sinks.config import ImpossibleDelivery, guarantee, kinds, parse

PLACES = {
    "log": {"topic": "t"},
    "kafka": {"topic": "t", "kafka.bootstrap.servers": "h:9092"},
    "postgres": {"url": "postgresql://h/d", "table": "t"},
    "sqlite": {"path": "p", "table": "t"},
    "parquet": {"url": "file:///p"},
    "iceberg": {"table": "n.t", "catalog.uri": "sqlite://"},
    "http": {"url": "http://h/{key}"},
}


def level(kind: str, output_id: tuple[str, ...] = (), **more: str) -> str:
    values = {"kind": kind, **PLACES[kind], **more}
    return guarantee(parse("s", values), output_id=output_id).level


@pytest.mark.parametrize("kind", list(kinds()))
def test_every_kind_writes_once_unless_it_is_told_otherwise(kind: str) -> None:
    assert level(kind) == ("idempotent" if kind == "http" else "exactly-once")


@pytest.mark.parametrize("kind", ["log", "kafka", "postgres", "sqlite"])
def test_at_least_once_is_cheaper_where_there_is_something_to_save(kind: str) -> None:
    assert level(kind, delivery="at-least-once") == "at-least-once"


@pytest.mark.parametrize("kind", ["parquet", "iceberg"])
def test_at_least_once_is_refused_where_it_saves_nothing(kind: str) -> None:
    with pytest.raises(ImpossibleDelivery) as refused:
        level(kind, delivery="at-least-once")
    assert refused.value.exit_code == 2
    assert "exactly-once" in str(refused.value.hint)


def test_rows_can_only_be_replaced_by_an_identity() -> None:
    with pytest.raises(ImpossibleDelivery, match="declares no output_id"):
        level("postgres", mode="upsert")
    assert level("postgres", ("id",), mode="upsert") == "exactly-once"
    assert level("sqlite", ("id",), mode="upsert", delivery="at-least-once") == "idempotent"


def test_an_endpoint_that_takes_a_repeated_post_for_another_one_cannot_be_exact() -> None:
    with pytest.raises(ImpossibleDelivery) as refused:
        level("http", method="POST", url="http://h/events")
    assert "PUT" in str(refused.value.hint)
    assert level("http", method="POST", url="http://h/e", deduplicates="true") == "idempotent"
    assert level("http", method="POST", url="http://h/e", delivery="at-least-once") == (
        "at-least-once"
    )


def test_a_put_that_names_no_record_would_keep_only_the_last() -> None:
    with pytest.raises(ImpossibleDelivery):
        level("http", url="http://h/latest")
    with pytest.raises(ImpossibleDelivery, match="declares no output_id"):
        level("http", url="http://h/{id}")
    assert level("http", ("id",), url="http://h/{id}") == "idempotent"
