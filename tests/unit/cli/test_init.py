"""What `init` writes works, and it overwrites nothing."""

from pathlib import Path
from typing import Any

import pytest


def test_the_written_function_is_a_valid_one(
    catchwater: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert catchwater("init", tmp_path / "new").code == 0
    scope: dict[str, Any] = {"__name__": "card_risk"}
    exec(compile((tmp_path / "new" / "card_risk.py").read_text(), "card_risk.py", "exec"), scope)
    assert scope["CardRisk"].__catchwater__.name == "card-risk"


def test_a_file_that_exists_stops_it_before_anything_is_written(
    catchwater: Any, tmp_path: Path
) -> None:
    (tmp_path / "pipeline.toml").write_text("mine")
    answer = catchwater("init", tmp_path)
    assert answer.code == 1
    assert "pipeline.toml exists already" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.toml"]
