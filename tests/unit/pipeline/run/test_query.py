"""The shards of deleted checkpoints leave this machine's cache."""

import shutil
from pathlib import Path

import pytest

from catchwater.pipeline.run.run import sweep_cache


def test_the_shards_of_a_checkpoint_that_is_gone_leave_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHWATER_CACHE", str(tmp_path / "cache"))
    shards = tmp_path / "cache" / "shards"
    (shards / "of an earlier version").mkdir(parents=True)
    (shards / "not ours").mkdir()
    (shards / "not ours" / "checkpoint").write_text(str(tmp_path / "nowhere"))
    others = set(shards.iterdir())
    gone, kept = tmp_path / "gone", tmp_path / "kept \udcff"
    made = []
    for checkpoint in (gone, kept):
        checkpoint.mkdir()
        sweep_cache(checkpoint)
        (mine,) = set(shards.iterdir()) - others - {*made}
        (mine / "count" / "00000").mkdir(parents=True)
        (mine / "count" / "00000" / "data.mdb").write_bytes(b"state")
        made.append(mine)
    shutil.rmtree(gone)
    sweep_cache(kept)
    assert set(shards.iterdir()) == {*others, made[1]}
    assert (made[1] / "count" / "00000" / "data.mdb").exists()


def test_a_cache_that_cannot_be_swept_fails_no_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shards").touch()
    monkeypatch.setenv("CATCHWATER_CACHE", str(tmp_path))
    sweep_cache(tmp_path)
