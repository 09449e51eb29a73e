"""Sealed files of the WAL: torn, tampered with, rotated, beside plain ones, without their key."""

import errno
import os
import random
import shutil
from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.objects.base import ObjectTruncated, StoreError
from catchwater.objects.keys import KeyMissing, KeyWrong, ListedKeys
from catchwater.objects.open import KEYS
from catchwater.objects.seal import BLOCK_BYTES, KeysNeeded
from catchwater.objects.urls import read_range
from catchwater.wal.base import WalCorrupt, WalFull, WalReadError
from catchwater.wal.directory import WalDirectory
from catchwater.wal.file import FileWal
from catchwater.wal.frames import SEALED_HEADER_BYTES

MARKER = b"marker-77aa"
ONE = ListedKeys({"one": bytes([1]) * 32})
BOTH = ListedKeys({"one": bytes([1]) * 32, "two": bytes([2]) * 32})
OTHER = ListedKeys({"one": bytes([3]) * 32})


def opened(
    root: Path,
    keys: ListedKeys | None = ONE,
    *,
    applied: int = 0,
    segment_bytes: int = 1 << 20,
    seals: bool | None = None,
) -> FileWal:
    return FileWal(
        root, ManualClock(), applied=applied, segment_bytes=segment_bytes, keys=keys,
        seals=keys is not None if seals is None else seals,
    )  # fmt: skip


def written(root: Path, payloads: list[bytes], keys: ListedKeys | None = ONE) -> None:
    wal = opened(root, keys)
    for payload in payloads:
        wal.append([payload])
    wal.close()


def read_back(wal: FileWal, after: int = 0) -> list[bytes]:
    return [bytes(view) for _, view in wal.frames(after)]


def files(root: Path) -> list[Path]:
    return sorted((root / "wal").iterdir())


@pytest.mark.parametrize(
    "size", [0, 1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 7]
)
def test_what_was_appended_is_read_by_any_range_and_is_nowhere_at_rest(
    tmp_path: Path, size: int
) -> None:
    wal = opened(tmp_path)
    before = wal.append([b"x" * 99])
    payload = (MARKER * (size // len(MARKER) + 1))[:size]
    position = wal.append([payload[: size // 3], memoryview(payload)[size // 3 :]])
    behind = wal.append([b"behind"])
    assert (position.size, behind.offset % 8) == (size, 0)
    edges = {0, 1, size // 2, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, size}
    for reader in (wal, WalDirectory(tmp_path, ONE)):
        for begin in sorted(edge for edge in edges if edge <= size):
            for end in sorted(edge for edge in edges if begin <= edge <= size):
                wanted = payload[begin:end]
                assert reader.read(position.file, position.offset + begin, end - begin) == wanted
                room = bytearray(b"<" + b"?" * len(wanted) + b">")
                into = memoryview(room)[1:-1]
                reader.read_into(position.file, position.offset + begin, into)
                assert room == b"<" + wanted + b">"
        assert reader.read(before.file, before.offset, 99) == b"x" * 99
        assert reader.read(behind.file, behind.offset, 6) == b"behind"
        with pytest.raises(WalReadError):
            reader.read(position.file, position.offset, size + 1)
        with pytest.raises(WalReadError):
            reader.read_into(position.file, position.offset, memoryview(bytearray(size + 1)))
        with pytest.raises(WalReadError):
            reader.read(behind.file, behind.offset + 4_000, 1)
    wal.close()
    assert MARKER not in files(tmp_path)[0].read_bytes()
    assert read_back(opened(tmp_path)) == [b"x" * 99, payload, b"behind"]


def test_frames_of_any_parts_follow_each_other(tmp_path: Path) -> None:
    """What one is sealed into serves the next: shorter, longer, in many pieces or in one."""
    noise = random.Random(7)
    edges = [0, 1, 100, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1]
    wal, payloads = opened(tmp_path), []
    for _ in range(60):
        parts = [noise.randbytes(noise.choice(edges)) for _ in range(noise.randrange(1, 6))]
        wal.append(parts)
        payloads.append(b"".join(parts))
    assert read_back(wal) == payloads
    wal.close()
    assert read_back(opened(tmp_path)) == payloads


def test_cut_at_every_byte_it_opens_with_the_whole_frames_and_goes_on(tmp_path: Path) -> None:
    payloads = [b"first", b"second" * 20, b"third"]
    (tmp_path / "full").mkdir()
    written(tmp_path / "full", payloads)
    data = files(tmp_path / "full")[0].read_bytes()
    for cut in range(len(data)):
        root = tmp_path / "cut"
        (root / "wal").mkdir(parents=True)
        (root / "wal" / f"{1:020d}.wal").write_bytes(data[:cut])
        wal = opened(root)
        kept = read_back(wal)
        assert kept == payloads[: len(kept)]
        assert wal.append([b"after"]).sequence == len(kept) + 1
        wal.close()
        again = opened(root)
        assert again.recovered.dropped_bytes == 0
        assert read_back(again) == [*kept, b"after"]
        again.close()
        shutil.rmtree(root)


def test_no_byte_can_be_changed_unseen(tmp_path: Path) -> None:
    written(tmp_path, [b"first" * 9, b"second"])
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    for at in range(len(whole)):
        data = bytearray(whole)
        data[at] ^= 0x40
        path.write_bytes(data)
        try:
            wal = opened(tmp_path, applied=2)
            assert wal.recovered.damage or read_back(wal) == [b"first" * 9, b"second"]
            wal.close()
        except (WalCorrupt, StoreError):
            pass
        for later in files(tmp_path):
            later.unlink()
        path.write_bytes(whole)


def test_who_mends_the_checksum_does_not_pass_either(tmp_path: Path) -> None:
    from crc32c import crc32c

    wal = opened(tmp_path)
    position = wal.append([b"a record"])
    wal.close()
    (path,) = files(tmp_path)
    data = bytearray(path.read_bytes())
    data[position.offset] ^= 1
    head = position.offset - 40
    sealed = bytes(data[position.offset : position.offset + position.size + 16])
    data[head + 32 : head + 36] = crc32c(sealed).to_bytes(4, "big")
    data[head + 36 : head + 40] = crc32c(bytes(data[head : head + 36])).to_bytes(4, "big")
    path.write_bytes(data)
    wal = opened(tmp_path)
    with pytest.raises(WalCorrupt, match=r"frames 1 to 1\).*it is not what was written"):
        read_back(wal)
    with pytest.raises(WalReadError, match="it is not what was written"):
        wal.read(position.file, position.offset, 3)


def test_a_file_is_never_gone_on_with_that_another_process_began(tmp_path: Path) -> None:
    """A number sealed twice with one key would give both contents away."""
    written(tmp_path, [b"one", b"two"])
    path = files(tmp_path)[0]
    torn = path.read_bytes()
    os.truncate(path, len(torn) - 6)
    wal = opened(tmp_path)
    assert wal.append([b"TWO"]).file.endswith(f"{2:020d}.wal")
    wal.close()
    assert len(files(tmp_path)) == 2
    assert read_back(opened(tmp_path)) == [b"one", b"TWO"]


@pytest.mark.parametrize("first", [[], [b"one"]], ids=["in-a-new-file", "behind-others"])
def test_a_number_is_not_sealed_again_where_a_write_found_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: list[bytes]
) -> None:
    wal = opened(tmp_path)
    for payload in first:
        wal.append([payload])
    heads: list[bytes] = []
    write = os.pwritev

    def full(fd: int, parts: list[bytes], at: int) -> int:
        if at < SEALED_HEADER_BYTES:
            return write(fd, parts, at)
        heads.append(os.pread(fd, SEALED_HEADER_BYTES, 0))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        for _ in range(3):
            with pytest.raises(WalFull):
                wal.append([b"next"])
    wal.append([b"next"])
    heads.append(files(tmp_path)[-1].read_bytes()[:SEALED_HEADER_BYTES])
    assert len(set(heads)) == len(heads)
    assert read_back(wal) == [*first, b"next"]
    wal.close()
    assert read_back(opened(tmp_path)) == [*first, b"next"]


def test_keys_are_rotated_and_switched_on_and_off_over_what_is_there(tmp_path: Path) -> None:
    written(tmp_path, [b"plain"], keys=None)
    written(tmp_path, [b"one"], keys=ONE)
    written(tmp_path, [b"two"], keys=BOTH)
    wal = opened(tmp_path, BOTH, seals=False)  # the disk does it from now on
    position = wal.append([b"disk"])
    assert b"disk" in (tmp_path / position.file).read_bytes()
    wal.close()
    wal = opened(tmp_path, BOTH)
    assert read_back(wal) == [b"plain", b"one", b"two", b"disk"]
    assert wal.read(files(tmp_path)[0].relative_to(tmp_path).as_posix(), 72, 5) == b"plain"
    wal.append([b"again"])
    wal.close()
    assert read_back(opened(tmp_path, BOTH), after=3) == [b"disk", b"again"]
    with pytest.raises(KeyMissing, match=r"000003.wal cannot be opened: .*'two'"):
        opened(tmp_path, ONE)


def test_a_file_that_rolls_takes_the_key_of_then(tmp_path: Path) -> None:
    class Rotating(ListedKeys):
        def rotate(self) -> None:
            self._keys["later"] = bytes([9]) * 32

    keys = Rotating({"one": bytes([1]) * 32})
    wal = opened(tmp_path, keys, segment_bytes=300)
    wal.append([b"before" * 50])
    keys.rotate()
    wal.append([b"behind"])
    wal.close()
    named = [path.read_bytes()[37:42] for path in files(tmp_path)]
    assert named[0].startswith(b"one") and named[1] == b"later"


@pytest.mark.parametrize("keys", [None, OTHER], ids=["no-key", "another-key"])
@pytest.mark.parametrize("applied", [0, 2])
def test_without_its_key_it_does_not_open_and_nothing_is_changed(
    tmp_path: Path, keys: ListedKeys | None, applied: int
) -> None:
    written(tmp_path, [b"one", b"two"])
    (path,) = files(tmp_path)
    with path.open("ab") as file:
        file.write(b"torn")
    before = path.read_bytes()
    wrong = KeysNeeded if keys is None else KeyWrong
    with pytest.raises(wrong, match=path.name) as refusal:
        opened(tmp_path, keys, applied=applied)
    assert refusal.value.hint
    assert files(tmp_path) == [path] and path.read_bytes() == before
    with pytest.raises(wrong):
        WalDirectory(tmp_path, keys).read(f"wal/{path.name}", 552, 1)


def test_another_file_of_the_log_cannot_take_its_place(tmp_path: Path) -> None:
    written(tmp_path, [b"one"])
    written(tmp_path, [b"two"])
    first, second = files(tmp_path)
    shutil.copy(first, second)
    with pytest.raises((WalCorrupt, StoreError)):
        opened(tmp_path)


def test_who_has_the_keys_reads_by_the_url_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = opened(tmp_path, ListedKeys({"k": bytes(range(32))}))
    wal.append([b"before"])
    position = wal.append([b"a payload of some bytes"])
    url = wal.url(position.file, (position.offset + 2, 7))
    monkeypatch.setenv("THEIRS", "k = AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
    monkeypatch.setenv(KEYS, "env:THEIRS")
    assert read_range(url, position.offset + 2, 7) == b"payload"
    with pytest.raises(ObjectTruncated):
        read_range(url, position.offset + position.size, 1)
    monkeypatch.delenv(KEYS)
    with pytest.raises(KeysNeeded, match="is encrypted, and no key was given"):
        read_range(url, position.offset, 1)


def test_a_file_begun_by_others_is_looked_at_again(tmp_path: Path) -> None:
    """A reader that comes while the file is being begun does not take it for a plain one."""
    (tmp_path / "wal").mkdir()
    path = tmp_path / "wal" / f"{1:020d}.wal"
    path.write_bytes(b"")
    reader = WalDirectory(tmp_path, ONE)
    with pytest.raises(WalReadError):
        reader.read(f"wal/{path.name}", 40, 1)
    path.unlink()
    written(tmp_path, [b"one"])
    assert reader.read(f"wal/{path.name}", SEALED_HEADER_BYTES + 40, 3) == b"one"
