"""A directory as an object store: durable, atomic, and clean after every failure."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from catchwater.objects.base import (
    ObjectMissing,
    ObjectTruncated,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from catchwater.objects.local import PIECE_BYTES, LocalStore, read_file_into, read_file_range

DAY_S = 24 * 3600


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def failing(code: int) -> Callable[..., int]:
    def call(*args: object, **more: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("method", ["put", "put_if_absent"])
@pytest.mark.parametrize("call", ["writev", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, call: str, code: int
) -> None:
    store = LocalStore(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing(code))
        with pytest.raises(StoreFull, match=r"a/b was not written: .* full"):
            getattr(store, method)("a/b", [b"x"])
    assert files(tmp_path) == set()
    getattr(store, method)("a/b", [b"x"])
    assert store.get("a/b") == b"x"


@pytest.mark.parametrize("method", ["put", "put_if_absent"])
@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_without_descriptors_it_may_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, code: int
) -> None:
    store = LocalStore(tmp_path)
    store.put("a", [b"old"])
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", failing(code))
        with pytest.raises(StoreUnavailable, match=os.strerror(code)):
            getattr(store, method)("b", [b"x"])
        with pytest.raises(StoreUnavailable, match=os.strerror(code)):
            store.get_range("a", 0, 3)
    assert files(tmp_path) == {"a"}


def test_a_failing_disk_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("a", [b"old"])
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", failing(errno.EIO))
        with pytest.raises(StoreError, match="could not be written") as failed:
            store.put("a", [b"new"])
    assert not isinstance(failed.value, StoreFull)
    assert store.get("a") == b"old"
    assert files(tmp_path) == {"a"}


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def one_byte_at_a_time(descriptor: int, parts: list[memoryview]) -> int:
        return os.write(descriptor, parts[0][:1])

    monkeypatch.setattr(os, "writev", one_byte_at_a_time)
    store = LocalStore(tmp_path)
    assert store.put("a", [b"abc", b"", b"def"]) == 6
    assert store.get("a") == b"abcdef"


def test_the_file_is_synced_before_it_is_named_and_the_name_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path)
    done = []
    fsync, replace = os.fsync, os.replace

    def traced_fsync(descriptor: int) -> None:
        done.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def traced_replace(source: str, target: Path) -> None:
        done.append(("name", str(target)))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", traced_fsync)
    monkeypatch.setattr(os, "replace", traced_replace)
    store.put("x/y/z", [b"1"])
    root = str(tmp_path)
    assert done[0][1].startswith(f"{root}/.incoming/")
    assert done[1:] == [
        ("sync", root),
        ("sync", f"{root}/x"),
        ("name", f"{root}/x/y/z"),
        ("sync", f"{root}/x/y"),
    ]


@pytest.mark.parametrize("sizes", [[5 * PIECE_BYTES + 7], [100_000] * 53, [3, 2 * PIECE_BYTES, 0]])
def test_others_never_wait_for_the_sync_of_more_than_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    unsynced, syncs = [0], []
    writev, fdatasync, fsync = os.writev, os.fdatasync, os.fsync

    def written(descriptor: int, parts: list[memoryview]) -> int:
        unsynced[0] += (size := writev(descriptor, parts))
        return size

    def synced(sync: Callable[[int], None], descriptor: int) -> None:
        syncs.append(unsynced[0])
        unsynced[0] = 0
        sync(descriptor)

    monkeypatch.setattr(os, "writev", written)
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: synced(fdatasync, descriptor))
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced(fsync, descriptor))
    parts = [os.urandom(size) for size in sizes]
    assert LocalStore(tmp_path).put("a", parts) == sum(sizes)
    assert LocalStore(tmp_path).get("a") == b"".join(parts)
    assert sum(syncs) == sum(sizes) and max(syncs) < 2 * PIECE_BYTES


WRITER = """
import os, sys
from pathlib import Path
from catchwater.objects.local import LocalStore
store = LocalStore(Path(sys.argv[1]))
call, point = sys.argv[2], int(sys.argv[3])
original = getattr(os, call)
def dying(*args, **more):
    global point
    point -= 1
    if point == 0:
        os._exit(9)
    return original(*args, **more)
setattr(os, call, dying)
store.put("a/b", [b"new" * 1000])
"""


@pytest.mark.parametrize(
    ("call", "point"), [("writev", 1), ("fsync", 1), ("fsync", 2), ("replace", 1), ("fsync", 3)]
)
def test_a_killed_writer_leaves_the_old_object_or_the_new(
    tmp_path: Path, call: str, point: int
) -> None:
    arguments = [sys.executable, "-c", WRITER, str(tmp_path), call, str(point)]
    killed = subprocess.run(arguments, timeout=60, check=False)
    assert killed.returncode == 9
    store = LocalStore(tmp_path)
    found = [info.key for info in store.list("")]
    assert found in ([], ["a/b"])
    if found:
        assert store.get("a/b") == b"new" * 1000


def test_what_a_killed_writer_left_is_removed_a_day_later(tmp_path: Path) -> None:
    LocalStore(tmp_path)
    left = tmp_path / ".incoming" / "tmpabc"
    left.write_bytes(b"half")
    store = LocalStore(tmp_path)
    assert left.exists()
    assert list(store.list("")) == []
    old_s = left.stat().st_mtime - DAY_S - 60
    os.utime(left, (old_s, old_s))
    LocalStore(tmp_path)
    assert not left.exists()


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match=r"file/objects could not be opened"):
        LocalStore(tmp_path / "file" / "objects")


def test_a_directory_is_no_object(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a/b", [b"x"])
    with pytest.raises(StoreError):
        store.get("a")
    with pytest.raises(ObjectMissing):
        store.get("b")


def test_who_may_read_an_object_is_for_the_umask_to_say(tmp_path: Path) -> None:
    """In a process of its own, for the umask is one of the whole process."""
    script = (
        "import os, sys; from pathlib import Path; from catchwater.objects.local import LocalStore;"
        "os.umask(int(sys.argv[2], 8)); LocalStore(Path(sys.argv[1])).put('a/b', [b'x'])"
    )
    for umask, mode in (("077", 0o600), ("027", 0o640), ("022", 0o644)):
        root = tmp_path / umask
        subprocess.run([sys.executable, "-c", script, str(root), umask], check=True, timeout=60)
        assert (root / "a" / "b").stat().st_mode & 0o777 == mode


def test_memory_is_filled_from_a_file_that_is_read_a_little_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"0123456789")
    read = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: read(fd, [into[0][:3]], at))
    room = bytearray(9)
    read_file_into(path, 2, memoryview(room)[1:])
    assert room == b"\x0023456789"
    first = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, at: first(fd, min(size, 4), at))
    assert read_file_range(path, 1, 9) == b"123456789"
    # Somebody cuts it off between the look at its size and the read.
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: 0)
    with pytest.raises(ObjectTruncated, match="file ends at byte"):
        read_file_into(path, 2, memoryview(room))
