"""The file WAL under torn tails, damage, full disks and failing syncs."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.objects.base import StoreUnavailable
from catchwater.wal.base import WalCorrupt, WalDead, WalFull, WalReadError, WalUnavailable
from catchwater.wal.file import FileWal
from catchwater.wal.frames import FILE_HEADER_BYTES, FRAME_HEADER_BYTES


def opened(root: Path, applied: int = 0, segment_bytes: int = 1 << 20) -> FileWal:
    return FileWal(root, ManualClock(), applied=applied, segment_bytes=segment_bytes)


def written(root: Path, payloads: list[bytes], segment_bytes: int = 1 << 20) -> None:
    wal = opened(root, segment_bytes=segment_bytes)
    for payload in payloads:
        wal.append([payload])
    wal.close()


def read_back(wal: FileWal, after: int = 0) -> list[bytes]:
    return [bytes(view) for _, view in wal.frames(after)]


def only_file(root: Path) -> Path:
    (path,) = (root / "wal").iterdir()
    return path


# --- torn tails (F4) ---------------------------------------------------------------------------


def test_cut_at_every_byte_it_opens_with_the_whole_frames_and_goes_on(tmp_path: Path) -> None:
    payloads = [b"first", b"second" * 20, b"third"]
    (tmp_path / "full").mkdir()
    written(tmp_path / "full", payloads)
    data = only_file(tmp_path / "full").read_bytes()
    for cut in range(len(data)):
        root = tmp_path / "cut"
        (root / "wal").mkdir(parents=True)
        (root / "wal" / f"{1:020d}.wal").write_bytes(data[:cut])
        wal = opened(root)
        kept = read_back(wal)
        assert kept == payloads[: len(kept)]
        assert wal.recovered.last_sequence == len(kept)
        assert wal.append([b"after"]).sequence == len(kept) + 1
        wal.close()
        again = opened(root)
        assert again.recovered.dropped_bytes == 0
        assert read_back(again) == [*kept, b"after"]
        again.close()
        shutil.rmtree(root)


def test_the_bytes_of_a_torn_tail_are_counted(tmp_path: Path) -> None:
    written(tmp_path, [b"whole", b"torn!"])
    path = only_file(tmp_path)
    os.truncate(path, path.stat().st_size - 4)
    wal = opened(tmp_path)
    assert wal.recovered.last_sequence == 1
    assert wal.recovered.dropped_bytes == FRAME_HEADER_BYTES + 4
    wal.close()


@pytest.mark.parametrize("stub", [0, 1, FILE_HEADER_BYTES - 1])
def test_a_file_that_was_only_begun_is_begun_again(tmp_path: Path, stub: int) -> None:
    written(tmp_path, [b"one", b"two"])
    whole = only_file(tmp_path).read_bytes()
    (tmp_path / "wal" / f"{3:020d}.wal").write_bytes(whole[:stub])
    wal = opened(tmp_path)
    assert wal.recovered.last_sequence == 2
    assert wal.append([b"three"]).sequence == 3
    assert read_back(wal) == [b"one", b"two", b"three"]
    wal.close()


# --- damage (F5) -------------------------------------------------------------------------------


def damaged(root: Path, record: int, count: int = 10) -> tuple[Path, int]:
    (root / "wal").mkdir(exist_ok=True)
    wal = opened(root)
    positions = [wal.append([bytes([n]) * 50]) for n in range(1, count + 1)]
    wal.close()
    path = only_file(root)
    data = bytearray(path.read_bytes())
    data[positions[record - 1].offset + 7] ^= 0x10
    path.write_bytes(data)
    return path, positions[record - 1].offset


def test_damage_the_catalog_has_not_applied_is_refused_with_file_and_bytes(tmp_path: Path) -> None:
    path, offset = damaged(tmp_path, record=4)
    before = path.read_bytes()
    with pytest.raises(WalCorrupt) as refusal:
        opened(tmp_path, applied=3)
    assert f"wal/{path.name}" in str(refusal.value)
    assert f"bytes {offset - FRAME_HEADER_BYTES} to {offset + 55}" in str(refusal.value)
    assert (refusal.value.damage.first_sequence, refusal.value.damage.last_sequence) == (4, 4)
    assert path.read_bytes() == before


def test_damage_the_catalog_has_applied_is_reported_and_the_rest_served(tmp_path: Path) -> None:
    damaged(tmp_path, record=4)
    wal = opened(tmp_path, applied=6)
    (damage,) = wal.recovered.damage
    assert (damage.first_sequence, damage.last_sequence) == (4, 4)
    assert read_back(wal, after=6) == [bytes([n]) * 50 for n in (7, 8, 9, 10)]
    wal.close()


def test_an_applied_last_frame_is_damage_and_never_a_torn_tail(tmp_path: Path) -> None:
    path, _ = damaged(tmp_path, record=10)
    before = path.read_bytes()
    wal = opened(tmp_path, applied=10)
    (damage,) = wal.recovered.damage
    assert (damage.first_sequence, damage.last_sequence) == (10, 10)
    assert wal.recovered.dropped_bytes == 0
    position = wal.append([b"goes on in a new file"])
    assert position.sequence == 11
    assert position.file == f"wal/{11:020d}.wal"
    assert path.read_bytes() == before
    wal.close()
    wal = opened(tmp_path, applied=10)
    assert read_back(wal, after=10) == [b"goes on in a new file"]
    wal.close()


def test_a_torn_tail_in_a_file_that_is_not_the_last_is_damage(tmp_path: Path) -> None:
    written(tmp_path, [b"x" * 40] * 4, segment_bytes=FILE_HEADER_BYTES + 100)
    first = min((tmp_path / "wal").iterdir())
    os.truncate(first, first.stat().st_size - 10)
    with pytest.raises(WalCorrupt, match=first.name):
        opened(tmp_path)


def test_a_missing_file_in_the_middle_is_refused(tmp_path: Path) -> None:
    written(tmp_path, [b"x" * 40] * 9, segment_bytes=FILE_HEADER_BYTES + 100)
    files = sorted((tmp_path / "wal").iterdir())
    files[1].unlink()
    with pytest.raises(WalCorrupt, match=files[0].name):
        opened(tmp_path)


def test_a_catalog_older_than_the_first_file_is_refused(tmp_path: Path) -> None:
    written(tmp_path, [b"x" * 40] * 6, segment_bytes=FILE_HEADER_BYTES + 100)
    files = sorted((tmp_path / "wal").iterdir())
    files[0].unlink()
    with pytest.raises(WalCorrupt, match="the catalog is old"):
        opened(tmp_path, applied=0)
    opened(tmp_path, applied=2).close()


def test_an_emptied_directory_is_refused_when_the_catalog_knows_better(tmp_path: Path) -> None:
    with pytest.raises(WalCorrupt, match="are gone"):
        opened(tmp_path, applied=7)


def test_a_damaged_header_of_a_file_with_frames_is_never_a_torn_tail(tmp_path: Path) -> None:
    written(tmp_path, [b"acknowledged"])
    path = only_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)
    for applied in (0, 1):
        with pytest.raises(WalCorrupt, match="frames 1 to"):
            opened(tmp_path, applied=applied)


def test_a_flipped_bit_anywhere_gives_the_same_frames_or_a_named_error(tmp_path: Path) -> None:
    payloads = [bytes([n]) * (n * 7) for n in range(1, 9)]
    written(tmp_path, payloads)
    path = only_file(tmp_path)
    data = path.read_bytes()
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << (at % 8)
        path.write_bytes(flipped)
        try:
            wal = opened(tmp_path)
        except WalCorrupt:
            continue
        kept = read_back(wal)
        assert kept == payloads[: len(kept)]
        # Only the last frame cannot be told from an unfinished write; its loss is reported.
        assert len(kept) == len(payloads) or wal.recovered.dropped_bytes > 0
        assert len(kept) >= len(payloads) - 1
        wal.close()


# --- failing disks (F6, F7) ----------------------------------------------------------------------


def test_a_full_disk_leaves_nothing_behind_and_the_next_append_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = opened(tmp_path)
    wal.append([b"one"])
    size = only_file(tmp_path).stat().st_size
    real = os.pwritev

    def half_then_full(fd: int, parts: list[memoryview], at: int) -> int:
        if at > size:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, parts[:1], at)

    monkeypatch.setattr(os, "pwritev", half_then_full)
    with pytest.raises(WalFull, match="No space"):
        wal.append([b"two" * 100])
    assert only_file(tmp_path).stat().st_size == size
    monkeypatch.setattr(os, "pwritev", real)
    assert wal.append([b"two"]).sequence == 2
    assert read_back(wal) == [b"one", b"two"]
    wal.close()


def test_a_file_that_cannot_be_begun_for_lack_of_space_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = opened(tmp_path)
    real = os.pwritev

    def full(fd: int, parts: list[memoryview], at: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(WalFull):
        wal.append([b"one"])
    monkeypatch.setattr(os, "pwritev", real)
    assert wal.append([b"one"]).sequence == 1
    wal.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_is_the_end_of_acknowledging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    wal = opened(tmp_path)
    wal.append([b"one"])
    real = os.fdatasync

    def failing(fd: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(WalDead):
        wal.append([b"two"])
    monkeypatch.setattr(os, "fdatasync", real)
    with pytest.raises(WalDead, match="takes no more appends"):
        wal.append([b"three"])
    wal.close()


@pytest.mark.parametrize("begun", [False, True])
def test_a_failed_write_is_the_end_of_acknowledging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    wal = opened(tmp_path)
    if begun:
        wal.append([b"one"])

    def failing(fd: int, parts: list[memoryview], at: int) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken:
        broken.setattr(os, "pwritev", failing)
        with pytest.raises(WalDead, match="Input/output error"):
            wal.append([b"two"])
    with pytest.raises(WalDead):
        wal.append([b"two"])
    wal.close()


def test_a_part_of_a_frame_that_cannot_be_taken_back_is_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = opened(tmp_path)
    wal.append([b"one"])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwritev", full)
    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(WalDead, match="could not be truncated"):
        wal.append([b"two"])
    wal.close()


def test_a_write_is_finished_however_the_system_splits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [parts[0][:3]], at))
    wal = opened(tmp_path)
    wal.append([b"in", b"", b"many", b"pieces"])
    assert read_back(wal) == [b"inmanypieces"]
    wal.close()


def test_a_range_that_is_not_there_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    wal = opened(tmp_path)
    position = wal.append([b"one"])
    assert wal.read(position.file, position.offset, 3) == b"one"
    with pytest.raises(WalReadError, match=position.file):
        wal.read(position.file, position.offset, 4000)
    with pytest.raises(WalReadError, match="No such file"):
        wal.read(f"wal/{99:020d}.wal", 0, 1)
    wal.close()


def test_a_file_begun_while_another_is_removed_is_not_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = opened(tmp_path, segment_bytes=FILE_HEADER_BYTES + 40)
    first, second = wal.append([b"one"]), wal.append([b"two"])
    real = Path.unlink
    during: list[str] = []

    def unlink(path: Path, missing_ok: bool = False) -> None:
        real(path, missing_ok=missing_ok)
        during.append(wal.append([b"three"]).file)

    monkeypatch.setattr(Path, "unlink", unlink)
    wal.remove(first.file)
    monkeypatch.setattr(Path, "unlink", real)
    assert [file.name for file in wal.files()] == [second.file, *during]
    assert wal.append([b"four"]).sequence == 4
    wal.remove(first.file)
    wal.close()
    again = opened(tmp_path, applied=1)
    assert read_back(again, after=1) == [b"two", b"three", b"four"]
    again.close()


# --- among many brokers --------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path) -> FileWal:
    (tmp_path / "wal").mkdir()
    return FileWal(tmp_path, ManualClock(), applied=0, segment_bytes=300, prefix="4-2/")


def test_a_full_disk_is_refused_and_recovered_from_under_a_prefix_too(
    session: FileWal, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.append([b"one"])

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as broken, pytest.raises(WalFull, match="wal/4-2"):
        broken.setattr(os, "pwritev", full)
        session.append([b"two"])
    assert session.append([b"two"]).file == f"wal/4-2/{1:020d}.wal"
    session.close()


def test_a_failed_sync_ends_a_session_but_not_its_neighbours(
    session: FileWal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as broken, pytest.raises(WalDead):
        broken.setattr(os, "fdatasync", failing)
        session.append([b"one"])
    with pytest.raises(WalDead, match="takes no more appends"):
        session.append([b"two"])
    neighbour = FileWal(tmp_path, ManualClock(), applied=0, prefix="5-1/")
    assert neighbour.append([b"one"]).sequence == 1
    session.close()
    neighbour.close()


def test_only_its_own_files_are_its_own_but_all_are_listed(
    session: FileWal, tmp_path: Path
) -> None:
    neighbour = FileWal(tmp_path, ManualClock(), applied=0, prefix="5-1/")
    mine, theirs = session.append([b"mine"]), neighbour.append([b"theirs"])
    (tmp_path / "wal" / "4-2" / "notes.wal").touch()
    assert [file.name for file in session.files()] == [mine.file]
    assert {info.key for info in session.listing()} == {mine.file, theirs.file}
    session.close()
    neighbour.close()


def test_a_file_may_be_removed_while_the_files_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wal = opened(tmp_path, segment_bytes=FILE_HEADER_BYTES + 1)  # every frame begins a file
    first, second = wal.append([b"one"]), wal.append([b"two"])
    look = Path.stat

    def remove_after_a_look(path: Path, **how: bool) -> os.stat_result:
        status = look(path, **how)
        if path == tmp_path / first.file:
            path.unlink()
        return status

    monkeypatch.setattr(Path, "stat", remove_after_a_look)
    assert [file.name for file in wal.files()] == [first.file, second.file]
    assert [file.name for file in wal.files()] == [second.file]
    wal.close()


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_without_descriptors_it_refuses_for_now_and_is_not_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def scarce(path: Path, *rest: int) -> int:
        raise OSError(code, os.strerror(code), str(path))

    wal = opened(tmp_path, segment_bytes=FILE_HEADER_BYTES + 1)  # every frame begins a file
    wal.append([b"one"])
    with monkeypatch.context() as without:
        without.setattr(os, "open", scarce)
        for _ in range(2):
            with pytest.raises(WalUnavailable, match=os.strerror(code)):
                wal.append([b"two"])
            # Not the error of a file that is gone or damaged.
            with pytest.raises(StoreUnavailable, match=os.strerror(code)):
                wal.read(wal.files()[0].name, 0, 4)
    assert wal.append([b"two"]).sequence == 2
    assert read_back(wal) == [b"one", b"two"]
    wal.close()
