"""What `pipeline upgrade` says where there is nothing to upgrade."""

from pathlib import Path
from typing import Any


def test_outputs_are_compared_only_beside_a_version_that_runs(
    catchwater: Any, pipeline_file: Path
) -> None:
    answer = catchwater("pipeline", "upgrade", pipeline_file, "--to", "2", "--same")
    assert answer.code == 2
    assert "--warm" in answer.err
