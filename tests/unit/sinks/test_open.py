"""Opening says what is missing, before anything is touched."""

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from catchwater.sinks.config import (
    ImpossibleDelivery,
    Kind,
    PackageMissing,
    SinkContext,
    kinds,
    open_sink,
    parse,
    preload,
    target_of,
)


def around(tmp_path: Path) -> SinkContext:
    return SinkContext("cards", tmp_path.as_uri(), tmp_path)


@pytest.mark.parametrize("kind", kinds().values(), ids=list(kinds()))
def test_a_kind_is_named_as_its_file_and_every_option_says_what_it_is(kind: Kind) -> None:
    assert kinds()[kind.name] is kind
    assert all(each.metadata["doc"] for each in fields(kind.options))
    assert kind.named_by in {each.name for each in fields(kind.options)}


_LOADED = """
import sys
from catchwater.sinks.config import kinds
kinds()
heavy = ("pyarrow", "psycopg", "confluent_kafka", "pyiceberg", "numba", "sqlalchemy")
print(*(name for name in heavy if name in sys.modules))
"""


def test_to_know_all_kinds_needs_nothing_that_one_of_them_needs() -> None:
    command = [sys.executable, "-c", _LOADED]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "\n"


_PRELOADED = """
import ast, inspect, sys
from catchwater.sinks.config import kinds
from catchwater.sinks.config import preload
preload([sys.argv[1]])
module = sys.modules[f"catchwater.sinks.kinds.{sys.argv[1]}"]
functions = [each for each in ast.walk(ast.parse(inspect.getsource(module)))
             if isinstance(each, ast.FunctionDef)]
wanted = {each.module for function in functions for each in ast.walk(function)
          if isinstance(each, ast.ImportFrom)}
print(*(name for name in wanted if name not in sys.modules))
"""


@pytest.mark.parametrize("kind", list(kinds()))
def test_what_is_preloaded_is_not_imported_when_a_sink_is_opened(kind: str) -> None:
    command = [sys.executable, "-c", _PRELOADED, kind]
    left = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert left == []


def test_a_missing_package_is_told_when_the_sink_is_opened_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    preload(kinds())


def test_a_package_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    config = parse("rows", {"kind": "postgres", "url": "postgresql://h/d", "table": "t"})
    with pytest.raises(PackageMissing, match="needs the package psycopg") as refused:
        open_sink(config, around(tmp_path))
    assert "catchwater[postgres]" in str(refused.value.hint)


def test_what_cannot_be_guaranteed_is_not_opened(tmp_path: Path) -> None:
    config = parse("rows", {"kind": "sqlite", "path": "o.db", "table": "t", "mode": "upsert"})
    with pytest.raises(ImpossibleDelivery):
        open_sink(config, around(tmp_path))
    assert not (tmp_path / "o.db").exists()


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (
            {"kind": "postgres", "url": "postgresql://me:s3cret@a/shop", "table": "t"},
            {"kind": "postgres", "url": "postgresql://me:s3cret@b/shop", "table": "t"},
            "postgres a:5432/shop t",
        ),
        (
            {"kind": "postgres", "url": "postgresql://a/shop", "table": "t"},
            {"kind": "postgres", "url": "postgresql://a:5433/shop", "table": "t"},
            "postgres a:5432/shop t",
        ),
        (
            {"kind": "postgres", "url": "postgresql:///shop", "table": "t"},
            {"kind": "postgres", "table": "t",
             "url": "postgresql:///shop?options=-c%20search_path%3Dstaging"},
            "postgres from-env:5432/shop t",
        ),
        (
            {"kind": "sqlite", "path": "out.db", "table": "t"},
            {"kind": "sqlite", "path": "other.db", "table": "t"},
            "sqlite FOLDER/out.db t",
        ),
        (
            {"kind": "iceberg", "table": "lake.t", "catalog.token": "s3cret",
             "catalog.uri": "postgresql+psycopg2://me:s3cret@a/cat?password=s3cret"},
            {"kind": "iceberg", "table": "lake.t", "catalog.token": "s3cret",
             "catalog.uri": "postgresql+psycopg2://me:s3cret@b/cat"},
            "iceberg postgresql+psycopg2://a/cat lake.t",
        ),
        (
            {"kind": "iceberg", "table": "lake.t", "warehouse": "one"},
            {"kind": "iceberg", "table": "lake.t", "warehouse": "other"},
            "iceberg file://FOLDER/one lake.t",
        ),
        (
            {"kind": "http", "url": "http://me:s3cret@h/x/{key}?api_key=s3cret"},
            {"kind": "http", "url": "http://other/x/{key}"},
            "http http://h/x/{key}",
        ),
        (
            {"kind": "kafka", "topic": "t", "kafka.bootstrap.servers": "b:1, a:1",
             "kafka.security.protocol": "SASL_SSL",
             "kafka.sasl.mechanism": "PLAIN", "kafka.sasl.username": "u",
             "kafka.sasl.password": "s3cret"},
            {"kind": "kafka", "topic": "t", "kafka.bootstrap.servers": "c:1"},
            "kafka t at a:1,b:1",
        ),
        ({"kind": "parquet", "url": "out"}, {"kind": "parquet", "url": "s3://b/out"},
         "parquet file://FOLDER/out"),
    ],
)  # fmt: skip
def test_a_target_is_known_by_its_server_and_never_by_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: dict[str, str], other: dict[str, str],
    told: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("PGHOST", "from-env")
    first, second = (target_of(parse("s", each), tmp_path) for each in (one, other))
    assert first == told.replace("FOLDER", str(tmp_path))
    assert first != second
    assert "s3cret" not in first + second
