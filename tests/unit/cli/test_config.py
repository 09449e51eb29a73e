"""A file is checked as its command would read it."""

import json
from pathlib import Path
from typing import Any


def test_a_brokers_file_is_told_with_its_defaults(catchwater: Any, tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("num.partitions=3\n")
    settings = json.loads(catchwater("config", "check", path, "--json").out)
    assert settings["num.partitions"] == 3
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:9092"


def test_an_unknown_key_is_named_with_its_line_and_the_nearest(
    catchwater: Any, tmp_path: Path
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("# mine\nnum.partitons=3\n")
    answer = catchwater("config", "check", path)
    assert (answer.code, answer.out) == (2, "")
    assert "line 2" in answer.err
    assert "num.partitions" in answer.err


def test_a_pipelines_file_is_known_by_its_sections(catchwater: Any, tmp_path: Path) -> None:
    catchwater("init", tmp_path)
    settings = json.loads(catchwater("config", "check", tmp_path / "pipeline.toml", "--json").out)
    assert settings["functions"] == ["card_risk:CardRisk"]
    assert settings["sinks"]["alerts"]["options"]["topic"] == "alerts"


def test_a_file_that_is_not_there_is_a_usage_error(catchwater: Any, tmp_path: Path) -> None:
    answer = catchwater("config", "check", tmp_path / "absent.toml")
    assert answer.code == 2
    assert str(tmp_path / "absent.toml") in answer.err
