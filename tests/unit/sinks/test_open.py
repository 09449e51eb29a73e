"""Opening says what is missing, before anything is touched."""

import sys
from pathlib import Path

import pytest

from catchwater.sinks.config import KINDS, parse
from catchwater.sinks.guarantee import ImpossibleDelivery
from catchwater.sinks.open import _OPENERS, PackageMissing, open_sink
from catchwater.sinks.surroundings import Surroundings


def around(tmp_path: Path) -> Surroundings:
    return Surroundings("cards", tmp_path.as_uri(), tmp_path)


def test_every_kind_can_be_opened() -> None:
    assert set(_OPENERS) == set(KINDS)


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
