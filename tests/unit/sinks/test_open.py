"""Opening says what is missing, before anything is touched."""

import subprocess
import sys
from pathlib import Path

import pytest

from catchwater.sinks.config import KINDS, parse
from catchwater.sinks.guarantee import ImpossibleDelivery
from catchwater.sinks.open import (
    _LOOKS,
    _MODULES,
    _OPENERS,
    _TARGETS,
    PackageMissing,
    open_sink,
    preload,
    target_of,
)
from catchwater.sinks.surroundings import Surroundings


def around(tmp_path: Path) -> Surroundings:
    return Surroundings("cards", tmp_path.as_uri(), tmp_path)


def test_every_kind_can_be_opened() -> None:
    assert set(_OPENERS) == set(_MODULES) == set(_TARGETS) == set(_LOOKS) == set(KINDS)


_PRELOADED = """
import ast, inspect, sys, textwrap
from catchwater.sinks import open as module
module.preload([sys.argv[1]])
def read(function):
    return [*ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))]
opener = read(module._OPENERS[sys.argv[1]])
called = {vars(module).get(each.id) for each in opener if isinstance(each, ast.Name)}
for function in called:
    opener += read(function) if inspect.isfunction(function) else []
wanted = {each.module for each in opener if isinstance(each, ast.ImportFrom)}
print(*(name for name in wanted if name not in sys.modules))
"""


@pytest.mark.parametrize(("kind", "others"), [("log", []), ("sqlite", ["postgres"])])
def test_what_is_preloaded_is_not_imported_when_a_sink_is_opened(
    kind: str, others: list[str]
) -> None:
    command = [sys.executable, "-c", _PRELOADED, kind]
    left = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert left == [f"catchwater.sinks.relational.{other}" for other in others]


def test_a_missing_package_is_told_when_the_sink_is_opened_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "catchwater.sinks.relational.postgres", raising=False)
    preload(KINDS)


def test_a_package_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "catchwater.sinks.relational.postgres", raising=False)
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
