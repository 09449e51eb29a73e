"""`pipeline status` answers while the store of a checkpoint at a URL does not."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from catchwater.objects.base import StoreUnavailable
from catchwater.objects.local import LocalStore
from catchwater.recovery.folder import lock
from catchwater.recovery.ledger import folder_of


@pytest.fixture
def at_url(
    pipeline_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Path]:
    """The file, on a machine of this name; three epochs are at its URL."""
    url = (tmp_path / "store").as_uri()
    pipeline_file.write_text(
        pipeline_file.read_text().replace('checkpoint = "checkpoint"', f'checkpoint = "{url}"')
    )
    assert url in pipeline_file.read_text()
    here = folder_of(url, tmp_path / "first")
    with lock(here):
        shutil.copytree(tmp_path / "checkpoint", here, dirs_exist_ok=True)

    def machine(name: str) -> Path:
        monkeypatch.setenv("CATCHWATER_CACHE", str(tmp_path / name))
        return pipeline_file

    return machine


def test_status_says_what_was_known_while_the_store_is_away(
    at_url: Callable[[str], Path], catchwater: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(machine: str) -> tuple[dict[str, Any], str]:
        done = catchwater("pipeline", "status", str(at_url(machine)), "--json")
        return json.loads(done.out), done.err

    found, said = status("second")
    assert found["committed_epoch"] == 2
    assert "cannot be read" not in said

    def away(*_: object) -> bytes:
        raise StoreUnavailable("The store is away.")

    with monkeypatch.context() as patch:
        for name in ("get", "size"):
            patch.setattr(LocalStore, name, away)
        found, said = status("second")
        assert found["state"] == "unknown"
        assert found["committed_epoch"] == 2
        assert "cannot be read now: The store is away." in said
        assert "What is known here was read " in said
        page = catchwater("pipeline", "status", str(at_url("second")))
        assert "the checkpoint's store does not answer" in " ".join(page.out.split())
        found, said = status("third")
        assert (found["state"], found["committed_epoch"]) == ("unknown", None)
        assert "Nothing is known of it here." in said
    found, said = status("third")
    assert found["committed_epoch"] == 2
    assert "cannot be read" not in said


def test_a_checkpoint_at_a_url_is_called_by_it(
    at_url: Callable[[str], Path], catchwater: Any, tmp_path: Path
) -> None:
    file, url = str(at_url("second")), (tmp_path / "store").as_uri()
    for command in (
        ("recovery", "restore", file, "--checkpoint", "9"),
        ("pipeline", "versions", file),
    ):
        said = catchwater(*command)
        words = " ".join(f"{said.out} {said.err}".split())
        assert url in words and str(tmp_path / "second") not in words, words
