"""Sealed objects: nothing is readable at rest, every change of them is found, keys come and go."""

import base64
import os
import stat
import sys
from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.config import ConfigError
from catchwater.objects import open as opening
from catchwater.objects.base import (
    BadKey,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    ObjectTruncated,
    StoreError,
)
from catchwater.objects.keys import KeyMissing, KeyWrong, ListedKeys, open_keys
from catchwater.objects.memory import MemoryStore
from catchwater.objects.open import CHECK, KEYS
from catchwater.objects.sealed import (
    BLOCK_BYTES,
    HEADER_BYTES,
    TAG_BYTES,
    SealBroken,
    SealedStore,
    check_keys,
)
from catchwater.objects.urls import read_range
from catchwater.replay.control import SentAstray, check_location

MARKER = b"marker-8f3a"
SIZES = [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 200_001, 5_000_000]


def line(key_id: str, key: bytes) -> str:
    return f"{key_id} = {base64.b64encode(key).decode()}\n"


def key(number: int) -> bytes:
    return bytes([number]) * 32


@pytest.fixture
def inner() -> MemoryStore:
    return MemoryStore(ManualClock())


@pytest.fixture
def store(inner: MemoryStore) -> SealedStore:
    return SealedStore(inner, ListedKeys({"k1": key(1)}))


def content(size: int) -> bytes:
    return (MARKER * (size // len(MARKER) + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
def test_what_was_put_is_read_back_and_is_nowhere_at_rest(
    store: SealedStore, inner: MemoryStore, size: int
) -> None:
    data = content(size)
    parts = [data[: size // 3], memoryview(data)[size // 3 :]]
    assert store.put("a/b", parts) == size
    assert (store.get("a/b"), store.size("a/b")) == (data, size)
    (info,) = store.list("a/")
    assert info.size_bytes == size
    assert MARKER not in inner.get("a/b")


@pytest.mark.parametrize("size", SIZES)
def test_ranges_are_read_over_the_borders_of_blocks(store: SealedStore, size: int) -> None:
    data = content(size)
    store.put("a", [data])
    edges = {b for b in (0, 1, size // 2, BLOCK_BYTES - 1, BLOCK_BYTES, size) if b <= size}
    for begin in edges:
        for end in edges:
            if begin <= end:
                assert store.get_range("a", begin, end - begin) == data[begin:end]
    assert store.get_upto("a", size // 2, 10**9) == data[size // 2 :]
    assert store.get_upto("a", size + 5, 10) == b""
    with pytest.raises(ObjectTruncated):
        store.get_range("a", size, 1)


def test_a_range_reads_the_blocks_that_it_needs(
    store: SealedStore, inner: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a", [content(10 * BLOCK_BYTES)])
    store.get_range("a", 0, 1)
    asked: list[tuple[int, int]] = []
    read = inner.get_range

    def watched(key: str, offset: int, size: int) -> bytes:
        asked.append((offset, size))
        return read(key, offset, size)

    monkeypatch.setattr(inner, "get_range", watched)
    monkeypatch.setattr(inner, "get_upto", None)  # the header is known
    assert (
        store.get_range("a", 5 * BLOCK_BYTES + 7, 10)
        == content(10 * BLOCK_BYTES)[5 * BLOCK_BYTES + 7 :][:10]
    )
    whole = BLOCK_BYTES + TAG_BYTES
    assert asked == [(HEADER_BYTES + 5 * whole, whole)]


@pytest.mark.parametrize("at", [20, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 70_000, -1])
def test_every_changed_byte_is_found(store: SealedStore, inner: MemoryStore, at: int) -> None:
    store.put("a", [content(200_001)])
    data = bytearray(inner.get("a"))
    data[at] ^= 1
    inner.put("a", [data])
    fresh = SealedStore(inner, ListedKeys({"k1": key(1)}))
    with pytest.raises(StoreError):
        fresh.get("a")
    with pytest.raises(StoreError):
        fresh.get_range("a", 0, 200_001)


@pytest.mark.parametrize("left", [0, 7, HEADER_BYTES, HEADER_BYTES + 100, 70_000, -1, 65_552 + 512])
def test_a_torn_write_is_found(store: SealedStore, inner: MemoryStore, left: int) -> None:
    store.put("a", [content(200_001)])
    inner.put("a", [inner.get("a")[:left]])
    fresh = SealedStore(inner, ListedKeys({"k1": key(1)}))
    if (
        0 <= left < 8
    ):  # not a byte of a seal: an object from before, and not the one that was written
        assert fresh.get("a") != content(200_001)
        return
    for read in (lambda: fresh.get("a"), lambda: fresh.get_range("a", 150_000, 50_001)):
        with pytest.raises((SealBroken, ObjectTruncated, KeyWrong)):
            read()


def test_blocks_and_objects_cannot_change_places(store: SealedStore, inner: MemoryStore) -> None:
    store.put("a", [content(3 * BLOCK_BYTES)])
    data, whole = inner.get("a"), BLOCK_BYTES + TAG_BYTES
    first, second = (data[HEADER_BYTES + n * whole :][:whole] for n in (0, 1))
    inner.put("a", [data[:HEADER_BYTES], second, first, data[HEADER_BYTES + 2 * whole :]])
    with pytest.raises(SealBroken):
        store.get("a")
    inner.put("b", [data])
    with pytest.raises(KeyWrong):
        store.get("b")


def test_two_objects_of_one_content_have_nothing_in_common(
    store: SealedStore, inner: MemoryStore
) -> None:
    store.put("a", [content(100)])
    store.put("b", [content(100)])
    assert inner.get("a")[HEADER_BYTES:] != inner.get("b")[HEADER_BYTES:]


def test_the_fence_and_replacements_work_as_without(store: SealedStore) -> None:
    store.put_if_absent("a", [b"one"])
    with pytest.raises(ObjectExists):
        store.put_if_absent("a", [b"two"])
    assert store.get_range("a", 0, 3) == b"one"
    store.put("a", [b"longer"])
    assert store.get_range("a", 0, 6) == b"longer"
    store.delete("a")
    with pytest.raises(ObjectMissing):
        store.get_range("a", 0, 1)


def test_one_that_another_process_has_replaced_is_read_anew(
    store: SealedStore, inner: MemoryStore
) -> None:
    store.put("a", [b"one"])
    assert store.get_range("a", 0, 3) == b"one"
    SealedStore(inner, ListedKeys({"k1": key(1)})).put("a", [b"two"])
    assert store.get_range("a", 0, 3) == b"two"


def test_objects_from_before_are_read_as_they_are(store: SealedStore, inner: MemoryStore) -> None:
    inner.put("old", [b"plain text"])
    assert (store.get("old"), store.size("old")) == (b"plain text", 10)
    assert store.get_range("old", 6, 4) == b"text"
    assert store.get_upto("old", 6, 100) == b"text"


def test_its_urls_grant_nothing_and_name_one_object(
    store: SealedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(KEYS, raising=False)
    assert store.url("a/b") == "sealed+memory:///#a/b"
    assert store.url().startswith("memory:")
    with pytest.raises(BadKey):
        store.url("../a")
    with pytest.raises(StoreError, match="a/b in memory:/// is encrypted, and no key was given"):
        read_range(store.url("a/b"), 0, 1)


def test_who_has_the_keys_reads_by_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in (("keys", 1), ("others", 2)):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(line("k", key(number)))
    monkeypatch.setenv(KEYS, f"file:{tmp_path / 'keys'}")
    store = opening.open_store((tmp_path / "objects").as_uri(), ManualClock())
    data = content(2 * BLOCK_BYTES)
    store.put("a/b", [data])
    url = store.url("a/b")
    assert read_range(url, BLOCK_BYTES - 5, 10) == data[BLOCK_BYTES - 5 : BLOCK_BYTES + 5]
    with pytest.raises(ObjectMissing):
        read_range(url + "c", 0, 1)
    monkeypatch.setenv(KEYS, f"file:{tmp_path / 'others'}")
    with pytest.raises(KeyWrong, match=r"a/b in file://.* cannot be opened"):
        read_range(url, 0, 1)


def test_no_server_may_have_a_reader_open_what_is_sealed() -> None:
    for allowed in ((), ("sealed+file:///data",)):
        with pytest.raises(SentAstray, match="is encrypted"):
            check_location("sealed+file:///data#a", "http://127.0.0.1:9644", allowed)


# --- Keys


def test_a_rotated_key_opens_what_it_has_sealed(inner: MemoryStore, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(line("k1", key(1)))
    store = SealedStore(inner, open_keys(f"file:{path}", {}))
    store.put("old", [MARKER])
    path.write_text(line("k1", key(1)) + line("k2", key(2)))
    store.put("new", [MARKER])
    assert (b"k1" in inner.get("old")[:HEADER_BYTES], b"k2" in inner.get("new")[:HEADER_BYTES]) == (
        True, True
    )  # fmt: skip
    fresh = SealedStore(inner, open_keys(f"file:{path}", {}))
    assert fresh.get("old") == fresh.get("new") == MARKER
    path.write_text(line("k2", key(2)))
    fresh = SealedStore(inner, open_keys(f"file:{path}", {}))
    assert fresh.get("new") == MARKER
    with pytest.raises(KeyMissing, match="'k1', which is not among 'k2'"):
        fresh.get("old")
    path.write_text("broken")
    assert fresh.get("new") == MARKER, "a bad file is not used, and the keys before are"


def test_a_wrong_key_is_said_to_be_one(inner: MemoryStore, store: SealedStore) -> None:
    check_keys(store)
    check_keys(SealedStore(inner, ListedKeys({"k1": key(1), "k2": key(2)})))
    other = SealedStore(inner, ListedKeys({"k1": key(9)}))
    with pytest.raises(
        KeyWrong, match=f"{CHECK} in memory:.* cannot be opened: The key 'k1' is not the one"
    ):
        check_keys(other)
    with pytest.raises(KeyMissing):
        check_keys(SealedStore(inner, ListedKeys({"k2": key(2)})))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no key"),
        ("k1", "line 1, is not of the form"),
        ("# one\nk1 = c2hvcnQ=", "line 2, is not of the form"),
        (line("k1", key(1)) * 2, "line 2: the key k1 is there twice"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as refused:
        open_keys(f"file:{path}", {})
    assert "c2hvcnQ" not in str(refused.value)


def test_a_file_of_keys_that_everybody_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(line("k1", key(1)))
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by everybody"):
        open_keys(f"file:{path}", {})


def test_keys_come_from_the_environment(inner: MemoryStore) -> None:
    store = SealedStore(inner, open_keys("env:OURS", {"OURS": line("k", key(3))}))
    store.put("a", [MARKER])
    assert store.get("a") == MARKER
    for spec in ("env:NONE", "vault:x", "file:", ""):
        with pytest.raises(ConfigError):
            open_keys(spec, {})


def test_keys_come_from_a_command(inner: MemoryStore, tmp_path: Path) -> None:
    kms = tmp_path / "kms"
    kms.write_text(
        f"#!{sys.executable}\n"
        "import base64, sys\n"
        "data = base64.b64decode(sys.stdin.read())\n"
        "print(base64.b64encode(bytes(b ^ 90 for b in data)).decode())\n"
    )
    kms.chmod(stat.S_IRWXU)
    store = SealedStore(inner, open_keys(f"command:{kms} --key ours", {}))
    store.put("a", [MARKER])
    assert SealedStore(inner, open_keys(f"command:{kms}", {})).get("a") == MARKER
    broken = SealedStore(inner, open_keys(f"command:{tmp_path}/none", {}))
    with pytest.raises(StoreError, match=r"none unwrap, gave no answer"):
        broken.get("a")


def test_a_store_is_sealed_where_the_environment_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (tmp_path / "objects").as_uri()
    monkeypatch.setenv(opening.KEYS, "env:OURS")
    monkeypatch.setenv("OURS", line("k", os.urandom(32)))
    opening.open_store(url, ManualClock()).put("a", [MARKER])
    opening.open_store(url, ManualClock(), may_seal=False).put("b", [MARKER])
    assert MARKER not in (tmp_path / "objects" / "a").read_bytes()
    assert (tmp_path / "objects" / "b").read_bytes() == MARKER
    assert opening.open_store(url, ManualClock()).get("a") == MARKER
    monkeypatch.delenv(opening.KEYS)
    plain: ObjectStore = opening.open_store(url, ManualClock())
    assert plain.get("a") != MARKER


def test_what_would_lie_beside_them_as_it_is_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {opening.KEYS: "env:OURS"}
    opening.refuse_plain_local("its state", {})
    opening.refuse_plain_local("its state", keys | {opening.LOCAL: "disk"})
    with pytest.raises(ConfigError, match="its state on this machine would not be"):
        opening.refuse_plain_local("its state", keys)
    in_memory, plain = tmp_path / "memory", tmp_path / "plain"
    monkeypatch.setattr(opening, "reaches_no_disk", lambda folder: folder == in_memory)
    opening.refuse_plain_local("its state", keys, [in_memory])
    with pytest.raises(ConfigError, match=rf"would not be \({plain}\)"):
        opening.refuse_plain_local("its state", keys, [in_memory, plain])


@pytest.mark.parametrize(
    ("kind", "swaps", "reaches_none"),
    [
        ("ext4", [], False),
        ("tmpfs", [], True),
        ("tmpfs", ["plain"], False),
        ("tmpfs", ["sealed"], True),
        ("tmpfs", ["sealed", "plain"], False),
        ("ramfs", ["plain"], True),
    ],
)
def test_what_is_in_memory_reaches_a_disk_by_a_swap_alone(
    tmp_path: Path, kind: str, swaps: list[str], reaches_none: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = number(tmp_path)
    write(tmp_path / "proc/self/mountinfo", f"29 1 {device} / / rw shared:1 - {kind} dev rw\n")
    lines = [f"/{each} partition 1 0 -2\n" for each in swaps]
    write(tmp_path / "proc/swaps", "Filename Type Size Used Priority\n" + "".join(lines))
    write(tmp_path / "sys/dev/block/253:1/dm/uuid", "CRYPT-PLAIN-swap\n")
    of = {"/plain": "253:2", "/sealed": "253:1"}
    monkeypatch.setattr(opening, "_device_of", lambda swap: of[str(swap)])
    assert opening.reaches_no_disk(tmp_path / "not" / "yet", tmp_path) is reaches_none


def test_a_disk_is_encrypted_if_all_that_it_is_made_of_is(tmp_path: Path) -> None:
    device = number(tmp_path)
    write(tmp_path / "proc/self/mountinfo", f"29 1 {device} / / rw - ext4 dev rw\n")
    about = tmp_path / "sys/dev/block"
    write(about / device / "dm/uuid", "LVM-of-two\n")
    for name, at in (("dm-1", "253:11"), ("dm-2", "253:12")):
        write(about / device / "slaves" / name / "dev", f"{at}\n")
        write(about / at / "dm/uuid", "CRYPT-LUKS2-of-it\n")
    assert opening.reaches_no_disk(tmp_path, tmp_path)
    write(about / "253:12/dm/uuid", "LVM-of-another\n")
    assert not opening.reaches_no_disk(tmp_path, tmp_path)
    write(about / device / "dm/uuid", "CRYPT-LUKS2-itself\n")
    assert opening.reaches_no_disk(tmp_path, tmp_path)


def test_of_this_machines_own_disks_it_says_something(tmp_path: Path) -> None:
    opening.reaches_no_disk(tmp_path)
    in_memory = Path("/proc/swaps").read_text().count("\n") == 1
    assert not in_memory or opening.reaches_no_disk(Path("/dev/shm"))


def number(folder: Path) -> str:
    device = folder.stat().st_dev
    return f"{os.major(device)}:{os.minor(device)}"


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
