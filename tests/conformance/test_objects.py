"""What every object store must do: over all of them, and again while requests fail.

Wire-level faults of S3 (500, 503, resets, lost and truncated answers) come from a proxy in front of
the server; the same kinds of the other stores from `tests.faulty`.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.faulty import FaultPlan, FaultyStore, Rates
from tests.s3 import make_bucket, versitygw
from tests.s3_faults import FaultyProxy, faulty_proxy

from catchwater.clock import ManualClock
from catchwater.objects import s3
from catchwater.objects.base import (
    BadKey,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    ObjectTruncated,
    StoreError,
    StoreRefused,
    StoreUnavailable,
)
from catchwater.objects.local import LocalStore
from catchwater.objects.memory import MemoryStore
from catchwater.objects.open import open_store
from catchwater.objects.retry import RetryingStore, RetryPolicy
from catchwater.objects.urls import read_range

FLAKY = Rates(slow=0.1, unavailable=0.15, lost_reply=0.15, late=0.05)
FLAKY_WIRE = {"500": 0.05, "503": 0.1, "reset": 0.05, "lost": 0.1, "truncated": 0.1}
PATIENCE = RetryPolicy(tries=40, total_s=1e9)


def flaky(store: ObjectStore) -> ObjectStore:
    clock = ManualClock()
    return RetryingStore(FaultyStore(store, FaultPlan(1, FLAKY), clock), clock, PATIENCE)


def bucket(url: str, endpoint: str) -> s3.S3Store:
    """A store without retries in the bucket of the URL, through another endpoint."""
    name = url.removeprefix("s3://").partition("?")[0]
    return s3.S3Store(name, "some/prefix", endpoint=endpoint, region=None)


STORES = ["local", "memory", "s3", "local, flaky", "memory, flaky", "s3, flaky"]
if os.environ.get("S3_SECOND"):
    STORES += ["second s3", "second s3, flaky"]


@pytest.fixture(scope="session")
def second_s3(tmp_path_factory: pytest.TempPathFactory, s3_server: str) -> Iterator[str]:
    """Another server; the first one's credentials, in the environment, are also its own."""
    with versitygw(tmp_path_factory.mktemp("versitygw")) as endpoint:
        yield endpoint


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    kind, _, state = request.param.partition(", ")
    if kind in ("local", "memory"):
        made = LocalStore(tmp_path / "objects") if kind == "local" else MemoryStore(ManualClock())
        yield flaky(made) if state else made
        return
    if kind == "s3":
        url = request.getfixturevalue("s3_url")
    else:
        name = f"b{abs(hash(request.node.name))}"
        url = make_bucket(request.getfixturevalue("second_s3"), name)
    if not state:
        yield open_store(url, ManualClock())
        return
    with faulty_proxy(url.partition("endpoint=")[2], seed=1) as proxy:
        proxy.at_random(FLAKY_WIRE)
        yield RetryingStore(bucket(url, proxy.endpoint), ManualClock(), PATIENCE)


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


def test_what_may_be_shorter_ends_where_the_object_does(store: ObjectStore) -> None:
    store.put("a", [b"0123456789"])
    for offset, size in [(0, 4), (3, 7), (3, 100), (9, 1), (10, 1), (100, 5)]:
        assert store.get_upto("a", offset, size) == b"0123456789"[offset : offset + size]
    store.put("empty", [])
    assert store.get_upto("empty", 0, 5) == b""


def test_a_missing_object_is_named(store: ObjectStore) -> None:
    reads = (lambda key: store.get_range(key, 0, 1), lambda key: store.get_upto(key, 0, 1))
    for read in (store.get, store.size, *reads):
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
        lambda: store.get_upto(key, 0, 1),
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


def test_a_reader_with_nothing_but_the_url_reads_a_range(store: ObjectStore) -> None:
    store.put("a/b", [bytes(range(200))])
    url = store.url("a/b")
    if url.startswith("memory:"):
        pytest.skip("nobody outside its process reads that")
    clock = ManualClock()
    assert read_range(url, 50, 100, clock=clock, policy=PATIENCE) == bytes(range(50, 150))
    assert read_range(url, 200, 0, clock=clock, policy=PATIENCE) == b""
    with pytest.raises(ObjectTruncated, match="ends at byte 200"):
        read_range(url, 150, 51, clock=clock, policy=PATIENCE)


# --- S3 on the wire (F9, F10, F11) ---------------------------------------------------------------


@pytest.fixture
def proxy(s3_url: str) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3_url.partition("endpoint=")[2]) as proxy:
        yield proxy


@pytest.fixture
def raw(s3_url: str, proxy: FaultyProxy) -> s3.S3Store:
    """A bucket behind the proxy, each request made once."""
    return bucket(s3_url, proxy.endpoint)


@pytest.fixture
def patient(raw: s3.S3Store) -> RetryingStore:
    return RetryingStore(raw, ManualClock())


PASSING = ["500", "503", "409", "reset", "lost"]


@pytest.mark.parametrize("fault", PASSING)
def test_a_failed_write_is_uncertain_and_its_repetition_succeeds(
    raw: s3.S3Store, patient: RetryingStore, proxy: FaultyProxy, fault: str
) -> None:
    proxy.next(fault)
    with pytest.raises(StoreUnavailable, match=r"bucket-.*/some/prefix/a could not be stored"):
        raw.put_if_absent("a", [b"once"])
    raw.delete("a")
    proxy.next(fault)
    assert patient.put_if_absent("a", [b"on", b"ce"]) == 4
    assert patient.get("a") == b"once"
    assert patient.requests.snapshot()["put_if_absent", "retried"] == 1


def test_after_a_lost_reply_a_key_that_another_has_taken_is_still_taken(
    raw: s3.S3Store, patient: RetryingStore, proxy: FaultyProxy
) -> None:
    raw.put("fence", [b"them"])
    proxy.next("reset")
    with pytest.raises(ObjectExists):
        patient.put_if_absent("fence", [b"us!!"])
    assert raw.get("fence") == b"them"


@pytest.mark.parametrize("fault", ["500", "503", "reset", "lost", "truncated", "unsized"])
def test_a_failed_read_is_repeated_and_never_gives_a_part(
    raw: s3.S3Store, patient: RetryingStore, proxy: FaultyProxy, fault: str
) -> None:
    raw.put("a", [b"0123456789" * 1000])
    for read in (
        lambda s: s.get("a"),
        lambda s: s.get_range("a", 0, 10_000),
        lambda s: s.get_upto("a", 0, 20_000),
    ):
        proxy.next(fault)
        with pytest.raises(StoreUnavailable, match="could not be read"):
            read(raw)
        proxy.next(fault)
        assert read(patient) == b"0123456789" * 1000
    proxy.next(fault)
    assert read_range(raw.url("a"), 5, 9_000, clock=ManualClock()) == raw.get_range("a", 5, 9_000)


def test_an_answer_that_never_comes_is_given_up(
    s3_url: str, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "_REQUEST_S", 1)
    proxy.next("hang")
    with pytest.raises(StoreUnavailable, match="no complete answer"):
        bucket(s3_url, proxy.endpoint).put_if_absent("a", [b"x"])


def test_a_store_that_stays_away_is_given_up_and_said_so(
    patient: RetryingStore, proxy: FaultyProxy
) -> None:
    proxy.at_random({"503": 1.0})
    with pytest.raises(StoreUnavailable, match=r"503 SlowDown: On purpose.*after 8 tries"):
        patient.get("a")
    assert len(proxy.seen) == 8
    assert patient.requests.snapshot() == {("get", "retried"): 7, ("get", "failed"): 1}


def test_a_large_object_is_uploaded_in_parts_and_whole_through_faults(
    raw: s3.S3Store, patient: RetryingStore, proxy: FaultyProxy
) -> None:
    parts = [bytes([n]) * 1_000_003 for n in range(20)]
    proxy.next("", "503", "", "lost")
    assert patient.put("big", parts) == 20_000_060
    assert sum("partNumber" in path for _, path, _ in proxy.seen) >= 3
    assert raw.get("big") == b"".join(parts)
    assert patient.put_if_absent("big/2", parts) == 20_000_060
    assert raw.get_range("big/2", 1_000_002, 2) == bytes([0, 1])


def test_no_part_of_an_unfinished_upload_is_ever_seen(raw: s3.S3Store, proxy: FaultyProxy) -> None:
    proxy.next("", "", "503", "", "")
    with pytest.raises(StoreUnavailable):
        raw.put("big", [bytes(s3.LARGE_BYTES + 1)])
    with pytest.raises(ObjectMissing):
        raw.size("big")
    assert keys(raw, "") == []


def test_a_stale_listing_hides_nothing_but_itself(
    raw: s3.S3Store, patient: RetryingStore, proxy: FaultyProxy
) -> None:
    raw.put("a", [b"1"])
    raw.put("b", [b"2"])
    proxy.next("stale")
    assert keys(patient, "") == ["a"]
    assert patient.get("b") == b"2"
    with pytest.raises(ObjectExists):
        patient.put_if_absent("b", [b"3"])


def test_a_listing_that_breaks_off_is_gone_on_with(
    raw: s3.S3Store, patient: RetryingStore, proxy: FaultyProxy
) -> None:
    for name in "abc":
        raw.put(name, [b"x"])
    proxy.next("503", "truncated")
    assert keys(patient, "") == ["a", "b", "c"]


def test_a_bucket_that_is_not_there_is_named_and_not_asked_again(s3_server: str) -> None:
    absent = open_store(f"s3://absent?endpoint={s3_server}", ManualClock())
    for call in (
        lambda: absent.put("a", [b"x"]),
        lambda: absent.put_if_absent("a", [b"x"]),
        lambda: absent.get("a"),
        lambda: absent.delete("a"),
        lambda: keys(absent, ""),
    ):
        with pytest.raises(StoreRefused, match="There is no bucket absent") as refusal:
            call()
        assert "Create the bucket" in str(refusal.value.hint)


def test_a_signed_url_that_is_refused_says_what_to_do(proxy: FaultyProxy) -> None:
    proxy.next("403")
    with pytest.raises(StoreRefused, match="answered 403") as refusal:
        read_range(f"{proxy.endpoint}/b/a?X-Amz-Signature=secret", 0, 1)
    assert "plan again" in str(refusal.value.hint)
    assert "secret" not in str(refusal.value)


# --- the faulty wrapper itself -------------------------------------------------------------------


def test_the_same_seed_gives_the_same_faults_and_healing_ends_them() -> None:
    def history(seed: int) -> list[str]:
        clock = ManualClock()
        plan = FaultPlan(seed)
        store = FaultyStore(MemoryStore(clock), plan, clock)
        for n in range(200):
            with suppress(StoreError):
                store.put_if_absent(f"k{n % 90}", [b"x"])
        drawn = list(plan.drawn)
        plan.heal()
        for n in range(90):
            assert store.put(f"k{n}", [b"y"]) == 1
        assert plan.drawn == drawn
        return drawn

    assert history(1) == history(1) != history(2)
    assert set(history(1)) == {"slow", "unavailable", "lost_reply", "late", "full"}


def test_a_listing_is_stale_for_a_while_and_nothing_else_is() -> None:
    clock = ManualClock()
    store = FaultyStore(MemoryStore(clock), FaultPlan(1, Rates(stale_list_ms=1_000)), clock)
    store.put("a", [b"1"])
    assert (keys(store, ""), store.get("a")) == ([], b"1")
    clock.advance(1_000)
    assert keys(store, "") == ["a"]
    store.delete("a")
    with pytest.raises(ObjectMissing):
        store.get("a")
    assert keys(store, "") == ["a"]
    clock.advance(1_000)
    assert keys(store, "") == []
