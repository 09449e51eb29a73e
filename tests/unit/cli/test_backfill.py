"""A backfill, or a rebuild, that was stopped on its way says so, and replaces nothing."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catchwater.pipeline.run.backfill import Bounds
from catchwater.recovery.ledger import write_whole


@pytest.fixture
def file(pipeline_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a pipeline with a backfill that was begun; its driver stops at once."""
    text = pipeline_file.read_text().replace("[pipeline]", '[pipeline]\nname = "cards"')
    pipeline_file.write_text(text)
    bounds = Bounds({"payments": {"0": 5}}, {"payments": {"0": 12_345}})
    folder = pipeline_file.parent / "checkpoint.backfills" / "june" / "catchwater"
    write_whole(folder / "backfill.json", msgspec.json.encode(bounds))
    monkeypatch.setattr("catchwater.cli.backfill.supervised", lambda *_: None)
    return pipeline_file


def test_a_backfill_that_was_stopped_is_not_done(
    catchwater: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHWATER_SINK__ALERTS__TOPIC", "june")
    answer = catchwater("pipeline", "backfill", file, "--label", "june", "--json")
    assert answer.code == 1
    told = json.loads(answer.out)
    assert (told["read"], told["records"], told["done"]) == (0, 12_340, False)
    assert "cards.june was stopped when it had read 0 of 12 340 records" in answer.err
    assert "hint: Type the same command again" in answer.err


def test_a_rebuild_that_was_stopped_leaves_the_pipeline_alone(
    catchwater: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def halted(folder: Path) -> None:
        pytest.fail(f"{folder} was stopped")

    monkeypatch.setattr("catchwater.pipeline.supervise.halt", halted)
    answer = catchwater("pipeline", "rebuild", file, "--label", "june", "--yes")
    assert answer.code == 1
    assert "cards.june was stopped" in answer.err
