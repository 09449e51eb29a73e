"""The compiled loops start wherever they are: their cache has a place, or does without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from catchwater.wire import kernels


def test_a_private_folder_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = kernels._private_cache_folder()
    assert folder is not None and folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert kernels._private_cache_folder() == folder, "it is found again"


def test_a_folder_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"catchwater-numba-{os.getuid()}"
    folder.mkdir()
    folder.chmod(0o777)
    assert kernels._private_cache_folder() is None


def test_a_link_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / f"catchwater-numba-{os.getuid()}").symlink_to(tmp_path / "elsewhere")
    assert kernels._private_cache_folder() is None


def test_without_a_temporary_folder_there_is_no_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels.tempfile, "gettempdir", lambda: str(tmp_path / "missing"))
    assert kernels._private_cache_folder() is None


@pytest.mark.parametrize("temporary", ["usable", "missing"])
def test_the_loops_compile_where_neither_package_nor_home_can_be_written(
    tmp_path: Path, temporary: str
) -> None:
    """A process of its own, because numba decides when the module is imported."""
    (tmp_path / "usable").mkdir()
    script = (
        "import tempfile\n"
        f"tempfile.gettempdir = lambda: {str(tmp_path / temporary)!r}\n"
        "from numba.core import caching\n"
        "caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator]\n"
        "from catchwater.wire import kernels\n"
        "import numpy as np\n"
        "target = np.zeros(20, np.uint8)\n"
        "assert kernels._put_varint(target, np.int64(0), np.int64(-2)) == 1\n"
        "assert target[0] == 3\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
