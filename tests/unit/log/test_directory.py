"""Data directories in use, read-only, damaged or from the future (F18, F41)."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from catchwater.catalog.errors import CatalogDead
from catchwater.clock import ManualClock
from catchwater.log.directory import (
    DataDirectory,
    DirectoryInUse,
    DirectoryTooNew,
    DirectoryUnusable,
)


def opened(path: Path) -> DataDirectory:
    return DataDirectory(path, ManualClock())


def test_a_new_directory_is_laid_out_and_opened_again(tmp_path: Path) -> None:
    first = opened(tmp_path / "a" / "b")
    cluster_id = first.snapshot.cluster_id
    assert len(cluster_id) == 22
    first.wal.append([b"frame"])
    first.close()
    assert (tmp_path / "a" / "b" / "format").read_text() == "1\n"
    second = opened(tmp_path / "a" / "b")
    assert second.snapshot.cluster_id == cluster_id
    assert second.wal.recovered.last_sequence == 1
    second.close()


def test_a_directory_in_use_is_refused_with_the_process_that_has_it(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(DirectoryInUse, match=f"in use by process {os.getpid()}"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


def test_the_lock_goes_with_the_process(tmp_path: Path) -> None:
    hold = (
        "import os, sys\nfrom pathlib import Path\nfrom catchwater.clock import Clock\n"
        "from catchwater.log.directory import DataDirectory\n"
        "held = DataDirectory(Path(sys.argv[1]), Clock())\n"
        "print(os.getpid(), flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as holder:  # fmt: skip
        assert holder.stdout is not None
        pid = holder.stdout.readline().strip()
        with pytest.raises(DirectoryInUse, match=f"in use by process {pid}"):
            opened(tmp_path)
        holder.kill()
    opened(tmp_path).close()


def test_a_newer_format_is_refused_by_name_and_nothing_is_locked(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("2\n")
    with pytest.raises(DirectoryTooNew, match="has format 2"):
        opened(tmp_path)
    (tmp_path / "format").write_text("1\n")
    opened(tmp_path).close()


def test_a_format_that_is_no_number_is_refused(tmp_path: Path) -> None:
    (tmp_path / "format").write_bytes(b"\xff\xfe what")
    with pytest.raises(DirectoryUnusable, match="number of a data format"):
        opened(tmp_path)


def test_a_directory_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DirectoryUnusable, match="file cannot be used"):
        opened(tmp_path / "file")

    def read_only(*_: object, **__: object) -> int:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as mounted:
        mounted.setattr(os, "open", read_only)
        with pytest.raises(DirectoryUnusable, match="Read-only file system"):
            opened(tmp_path / "new")

    def full(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as filled:
        filled.setattr(os, "open", full)
        with pytest.raises(DirectoryUnusable, match="No space left") as refused:
            opened(tmp_path / "new")
    assert "Make room" in (refused.value.hint or "")


def test_a_damaged_catalog_is_named_and_nothing_stays_open(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"no database " * 100)
    with pytest.raises(CatalogDead, match=r"catalog\.db"):
        opened(tmp_path)
    (tmp_path / "catalog.db").unlink()
    opened(tmp_path).close()
