"""A sink's section: its keys by kind, checked, with the nearest named."""

import pytest

from catchwater.config import ConfigError
from catchwater.sinks.config import known_keys, parse


def test_a_sink_is_a_topic_of_our_log_unless_it_says_otherwise() -> None:
    sink = parse("alerts", {"topic": "alerts"})
    assert (sink.kind, sink.delivery, sink.source, sink.keep_ms) == (
        "log", "exactly-once", None, None,
    )  # fmt: skip
    assert (sink.options.topic, sink.options.partitions) == ("alerts", None)


def test_every_key_of_the_kind_is_there_with_its_default() -> None:
    sink = parse("kv", {"kind": "http", "url": "http://h/{key}", "keep": "7d", "from": "rules"})
    assert sink.options.method == "PUT"
    assert (sink.options.concurrency, sink.options.timeout_ms) == (16, 10_000)
    assert sink.options.deduplicates is False
    assert (sink.keep_ms, sink.source) == (604_800_000, "rules")


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "topic in [sink.alerts] is missing"),
        ({"kind": "sqlite", "path": "x"}, "table in [sink.alerts] is missing"),
        ({"kind": "mysql"}, "must be one of http, iceberg, kafka, log, parquet, postgres, sqlite"),
        ({"topic": "t", "delivery": "twice"}, "must be one of exactly-once, at-least-once"),
        ({"topic": "t", "partitions": "0"}, "must be a whole number from 1 on, not '0'"),
        ({"topic": "t", "keep": "long"}, 'must be a duration such as "30s"'),
        ({"topic": "t", "tabel": "x"}, "a sink of kind log has no key tabel"),
        ({"kind": "http", "url": "http://h", "deduplicates": "yes"}, "must be true or false"),
    ],
)
def test_what_cannot_be_is_refused_by_name(values: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse("alerts", values)
    assert told in str(refused.value)


def test_the_place_is_told_without_a_password() -> None:
    url = "postgresql://me:secret@db.example:5432/shop"
    sink = parse("rows", {"kind": "postgres", "url": url, "table": "alerts"})
    assert sink.place == "postgresql://db.example:5432/shop alerts"


def test_all_keys_are_known_before_the_kind_is() -> None:
    assert {"kind", "delivery", "from", "keep", "topic", "url", "table"} <= set(known_keys())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"topic": "a b"}, "topic in [sink.alerts] must be a topic's name"),
        ({"kind": "kafka", "topic": ".."}, "must be a topic's name"),
        ({"kind": "sqlite", "path": "x", "table": "main.t"}, "table in [sink.alerts] must be a"),
        ({"kind": "postgres", "url": "u", "table": "a.b.c"}, "a schema may stand before a dot"),
        ({"kind": "postgres", "url": "u", "table": "t" * 41}, "at most 40"),
        ({"kind": "iceberg", "table": "t", "warehouse": "w"}, "with its namespace"),
    ],
)
def test_a_name_that_cannot_be_is_refused_before_anything_is_opened(
    values: dict[str, str], told: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        parse("alerts", values)
    assert told in str(refused.value)


def test_a_section_that_forgot_its_kind_is_told_so() -> None:
    with pytest.raises(ConfigError, match="a sink of kind log has no key url") as refused:
        parse("alerts", {"url": "postgresql://h/d", "table": "t"})
    assert refused.value.hint == (
        "kind is left out, which means log; url is a key of http, parquet, postgres."
    )


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://h/d?user=me&password=s3cret",
        "postgresql://me:s3/cret@h/d",
        "postgresql://me:s3@cret@h/d",
    ],
)
def test_a_password_is_not_told_wherever_it_stands(url: str) -> None:
    place = parse("rows", {"kind": "postgres", "url": url, "table": "t"}).place
    assert place == "postgresql://h/d t"
