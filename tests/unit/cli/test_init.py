"""What `init` writes works, and it overwrites nothing."""

import subprocess
import sys
from pathlib import Path
from typing import Any


def test_the_written_test_passes(catchwater: Any, tmp_path: Path) -> None:
    answer = catchwater("init", tmp_path / "new")
    assert answer.code == 0
    assert f"next: cd {tmp_path / 'new'}, pytest" in answer.err
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_card_risk.py"]
    ended = subprocess.run(command, cwd=tmp_path / "new", capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
    assert "2 passed" in ended.stdout


def test_a_file_that_exists_stops_it_before_anything_is_written(
    catchwater: Any, tmp_path: Path
) -> None:
    (tmp_path / "pipeline.toml").write_text("mine")
    answer = catchwater("init", tmp_path)
    assert answer.code == 1
    assert "pipeline.toml exists already" in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["pipeline.toml"]
