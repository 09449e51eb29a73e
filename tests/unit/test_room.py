"""The reserve: there before it is needed, given up once, and taken back when there is room."""

import errno
import os
from pathlib import Path

import pytest

from catchwater.room import Reserve

SIZE = 100_000


def test_it_takes_its_space_gives_it_up_once_and_takes_it_back(tmp_path: Path) -> None:
    file = tmp_path / "reserve"
    reserve = Reserve(file, SIZE)
    assert reserve.refill()
    assert os.stat(file).st_blocks * 512 >= SIZE
    assert reserve.give_up()
    assert os.stat(file).st_blocks == 0
    assert not reserve.give_up()
    assert reserve.refill()
    reserve.close()
    again = Reserve(file, SIZE)
    assert again.give_up(), "what an earlier process has put by is there"
    again.close()


def test_on_a_full_disk_it_is_not_whole_and_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int, *_: int) -> None:
        os.ftruncate(fd, 4096)  # what a file system may leave of it
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    reserve = Reserve(tmp_path / "reserve", SIZE)
    with monkeypatch.context() as filled:
        filled.setattr(os, "posix_fallocate", full)
        assert not reserve.refill()
        assert (tmp_path / "reserve").stat().st_size == 0
        assert not reserve.give_up()
    assert reserve.refill()
    reserve.close()


def test_where_nothing_can_be_put_by_nothing_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unable(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fallocate", unable)
    reserve = Reserve(tmp_path / "reserve", SIZE)
    assert reserve.refill() and not reserve.give_up()
    reserve.close()
    none = Reserve()
    assert none.refill() and not none.give_up()
    none.close()
