"""What every object store must do, over all of them."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from catchwater.clock import ManualClock
from catchwater.objects.base import (
    BadKey,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    ObjectTruncated,
)
from catchwater.objects.local import LocalStore
from catchwater.objects.memory import MemoryStore

STORES: dict[str, Callable[[Path], ObjectStore]] = {
    "local": lambda folder: LocalStore(folder / "objects"),
    "memory": lambda folder: MemoryStore(ManualClock()),
}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return STORES[request.param](tmp_path)


def keys(store: ObjectStore, prefix: str) -> list[str]:
    return [info.key for info in store.list(prefix)]


def test_what_was_put_is_read_back(store: ObjectStore) -> None:
    parts = [b"one", bytearray(b"two"), memoryview(b"three")[1:], b""]
    assert store.put("a/b.seg", parts) == 10
    assert store.get("a/b.seg") == b"onetwohree"
    assert store.size("a/b.seg") == 10


def test_thousands_of_parts_are_one_object(store: ObjectStore) -> None:
    parts = [bytes([i % 256]) * (i % 7) for i in range(5000)]
    store.put("many", parts)
    assert store.get("many") == b"".join(parts)


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    assert store.put("empty", []) == 0
    assert store.get("empty") == b""
    assert store.get_range("empty", 0, 0) == b""


def test_put_replaces_what_was_there(store: ObjectStore) -> None:
    store.put("a", [b"a longer first version"])
    store.put("a", [b"second"])
    assert store.get("a") == b"second"


def test_put_if_absent_stores_once(store: ObjectStore) -> None:
    store.put_if_absent("a", [b"first"])
    with pytest.raises(ObjectExists, match="a"):
        store.put_if_absent("a", [b"second"])
    assert store.get("a") == b"first"
    store.delete("a")
    store.put_if_absent("a", [b"third"])
    assert store.get("a") == b"third"


def test_of_many_put_if_absent_exactly_one_succeeds(store: ObjectStore) -> None:
    winners = []

    def compete(name: bytes) -> None:
        try:
            store.put_if_absent("fence", [name])
        except ObjectExists:
            return
        winners.append(name)

    threads = [threading.Thread(target=compete, args=(b"%d" % i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [store.get("fence")] == winners


def test_a_range_is_returned_whole_or_not_at_all(store: ObjectStore) -> None:
    store.put("a", [b"0123456789"])
    assert store.get_range("a", 3, 4) == b"3456"
    assert store.get_range("a", 10, 0) == b""
    for offset, size in [(7, 4), (10, 1), (11, 0), (100, 5)]:
        with pytest.raises(ObjectTruncated, match="ends at byte 10"):
            store.get_range("a", offset, size)


def test_a_missing_object_is_named(store: ObjectStore) -> None:
    for read in (store.get, store.size, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(ObjectMissing, match="gone/x"):
            read("gone/x")


def test_deleting_twice_is_no_error(store: ObjectStore) -> None:
    store.put("a", [b"x"])
    store.delete("a")
    store.delete("a")
    with pytest.raises(ObjectMissing):
        store.get("a")


def test_a_listing_is_by_prefix_and_in_key_order(store: ObjectStore) -> None:
    for key in ["s/b/2", "s/a/1", "s/ab", "t/1", "s/a-1"]:
        store.put(key, [b"12345"])
    assert keys(store, "s/") == ["s/a-1", "s/a/1", "s/ab", "s/b/2"]
    assert keys(store, "s/a") == ["s/a-1", "s/a/1", "s/ab"]
    assert keys(store, "") == ["s/a-1", "s/a/1", "s/ab", "s/b/2", "t/1"]
    assert keys(store, "nothing/here") == []
    assert [info.size_bytes for info in store.list("t/")] == [5]
    assert all(info.modified_ms > 1_600_000_000_000 for info in store.list(""))


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "..", "a/../b", ".hidden", "a/.b", "ä", "a b", "a\n", "a\0"]
)
def test_a_key_that_could_leave_the_store_is_refused(store: ObjectStore, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.put(key, [b"x"]),
        lambda: store.put_if_absent(key, [b"x"]),
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.size(key),
        lambda: store.delete(key),
    ]
    if key:  # the URL of no key is the store's own
        calls.append(lambda: store.url(key))
    for call in calls:
        with pytest.raises(BadKey):
            call()
    assert keys(store, "") == []


def test_two_objects_have_two_urls(store: ObjectStore) -> None:
    assert store.url("a/b") != store.url("a/c")
    assert "://" in store.url("a/b")
