"""One log, several writers: what one committed stays, and no two commit the same."""

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest

from catchwater.clock import Clock, ManualClock
from catchwater.objects.base import Buffer, ObjectInfo, StoreUnavailable
from catchwater.objects.memory import MemoryStore
from catchwater.recovery import fenced
from catchwater.recovery.fenced import LeaseHeld, LeaseLost, Writer, read_end, take
from catchwater.recovery.ledger import LedgerDamaged

LEASE_MS = 3000


def test_what_is_appended_is_read() -> None:
    store, clock = MemoryStore(), ManualClock()
    writer = take(store, clock)
    writer.append({"a": b"1", "b": b"2"})
    writer.append({"a": None, "c": b"3"})
    assert read_end(store).files == {"b": b"2", "c": b"3"} == writer.files


def test_a_place_where_nothing_is_has_no_files() -> None:
    assert read_end(MemoryStore()).number == -1


def test_a_holder_that_has_let_go_is_not_waited_for() -> None:
    store, clock = MemoryStore(), ManualClock()
    writer = take(store, clock)
    writer.append({"a": b"1"})
    writer.beat(released=True)
    before_ms = clock.now_ms()
    assert take(store, clock).files == {"a": b"1"}
    assert clock.now_ms() == before_ms


def test_a_holder_that_is_known_to_be_gone_is_not_waited_for() -> None:
    store, clock = MemoryStore(), ManualClock()
    gone = take(store, clock).mine.token
    before_ms = clock.now_ms()
    take(store, clock, gone={gone})
    assert clock.now_ms() == before_ms


def test_a_silent_holder_is_waited_for_a_whole_lease_and_then_commits_nothing() -> None:
    store, clock = MemoryStore(), ManualClock()
    first = take(store, clock, lease_ms=LEASE_MS)
    first.append({"a": b"1"})
    before_ms = clock.now_ms()
    second = take(store, clock)
    assert clock.now_ms() - before_ms >= LEASE_MS
    with pytest.raises(LeaseLost, match=r"Process \d+ on .* has taken over"):
        first.append({"a": b"2"})
    with pytest.raises(LeaseLost):
        first.beat()
    second.append({"b": b"3"})
    assert read_end(store).files == {"a": b"1", "b": b"3"}


def test_a_holder_that_has_just_shown_that_it_lives_need_not_ask() -> None:
    class Asked(MemoryStore):
        times = 0

        def get(self, key: str) -> bytes:
            self.times += 1
            return super().get(key)

    store, clock = Asked(), ManualClock()
    first = take(store, clock, lease_ms=LEASE_MS)
    first.append({"a": b"1"})
    asked = store.times
    clock.advance(LEASE_MS // 2)
    first.hold()
    assert store.times == asked
    clock.advance(1)
    first.hold()
    assert store.times > asked
    # To ask is no sign of life, and to beat is.
    asked = store.times
    first.hold()
    assert store.times > asked
    first.beat()
    asked = store.times
    first.hold()
    assert store.times == asked
    # It stands still, and wakes when another has its place.
    second = take(store, clock)
    with pytest.raises(LeaseLost, match="has taken over"):
        first.hold()
    assert second.claim.log == first.claim.log
    assert first.claim.is_before(second.claim) and not second.claim.is_before(first.claim)
    assert not first.claim.is_before(take(MemoryStore(), clock).claim)


@pytest.mark.parametrize("sign_of_life", ["beat", "append"])
def test_a_holder_that_lives_keeps_it(sign_of_life: str) -> None:
    store = MemoryStore()
    first = take(store, ManualClock(), lease_ms=LEASE_MS)

    class Meanwhile(ManualClock):
        def pause(self, seconds: float, woken: int | None = None) -> None:
            super().pause(seconds)
            if sign_of_life == "beat":
                first.beat()
            else:
                first.append({"a": self.token().encode()})

    clock = Meanwhile()
    before_ms = clock.now_ms()
    with pytest.raises(LeaseHeld, match=r"in use by process \d+ on"):
        take(store, clock)
    assert clock.now_ms() - before_ms <= LEASE_MS / 10, "the sooner, the sooner it may go on"
    first.append({"b": b"2"})


def test_an_append_whose_acknowledgement_was_lost_is_not_done_twice() -> None:
    store, clock = _LostOnce(), ManualClock()
    writer = take(store, clock)
    store.lose = True
    with pytest.raises(StoreUnavailable):
        writer.append({"a": b"1"})
    writer.append({"a": b"1"})
    writer.append({"b": b"2"})
    assert read_end(store).files == {"a": b"1", "b": b"2"}
    assert len([*store.list("ledger/")]) == 3


def test_old_records_are_deleted_and_what_they_said_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fenced, "FULL_EVERY", 4)
    store, clock = MemoryStore(), ManualClock()
    writer = take(store, clock)
    for number in range(100):
        writer.append({str(number % 3): str(number).encode()})
        writer.beat()
    assert len([*store.list("ledger/")]) < 20
    assert read_end(store).files == {"0": b"99", "1": b"97", "2": b"98"}


def test_a_writer_that_slept_finds_its_number_free_and_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fenced, "FULL_EVERY", 2)
    store, clock = MemoryStore(), ManualClock()
    first = take(store, clock)
    second = take(store, clock)
    for number in range(20):
        second.append({"a": str(number).encode()})
        second.beat()
    assert not [each for each in store.list("ledger/") if each.key.endswith("00001")]
    with pytest.raises(LeaseLost):
        first.append({"a": b"of the first"})
    assert read_end(store).files == {"a": b"19"}


def test_a_taker_that_slept_finds_its_number_free_and_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fenced, "FULL_EVERY", 2)
    store, clock = _Interrupted(), ManualClock()
    holder = take(store, clock)
    store.before = ("put_if_absent", lambda: _append_many(holder))
    with pytest.raises(LeaseHeld):
        take(store, clock)
    assert read_end(store).files == {"a": b"19"}
    holder.append({"b": b"1"})


@pytest.mark.parametrize("at", range(5))
def test_a_reader_that_slept_misses_nothing(at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fenced, "FULL_EVERY", 2)
    store, clock = _Interrupted(), ManualClock()
    holder = take(store, clock)
    holder.append({"a": b"first"})
    store.before = ("get", lambda: _append_many(holder))
    store.skip = at
    assert read_end(store).files == {"a": b"19"}


def _append_many(writer: Writer) -> None:
    for number in range(20):
        writer.append({"a": str(number).encode()})
        writer.beat()


@pytest.mark.parametrize("damage", [b"", b"CWL1\0\0\0\0nothing"])
def test_a_damaged_record_is_named(damage: bytes) -> None:
    store, clock = MemoryStore(), ManualClock()
    take(store, clock).append({"a": b"1"})
    store.put("ledger/00000000000000000001", [damage])
    with pytest.raises(LedgerDamaged, match="ledger/00000000000000000001 is damaged"):
        read_end(store)


def test_records_that_are_missing_at_the_end_are_missed() -> None:
    store, clock = MemoryStore(), ManualClock()
    writer = take(store, clock)
    writer.append({"a": b"1"})
    writer.beat()
    store.delete("ledger/00000000000000000001")
    with pytest.raises(LedgerDamaged, match="lacks records"):
        read_end(store)


class _Interrupted(MemoryStore):
    """Something else happens before one of its requests."""

    before: tuple[str, Callable[[], None]] | None = None
    skip = 0

    def _interrupt(self, operation: str) -> None:
        if self.before is not None and self.before[0] == operation:
            if self.skip:
                self.skip -= 1
            else:
                happens, self.before = self.before[1], None
                happens()

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        if key.startswith("ledger/"):
            self._interrupt("put_if_absent")
        return super().put_if_absent(key, parts)

    def get(self, key: str) -> bytes:
        self._interrupt("get")
        return super().get(key)


class _LostOnce(MemoryStore):
    lose = False

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        size = super().put_if_absent(key, parts)
        if self.lose:
            self.lose = False
            raise StoreUnavailable("The connection was lost.")
        return size


# Drivers that die, stop for as long as they like, and lose requests and their answers, by seed.


@pytest.mark.parametrize("seed", range(60))
def test_of_any_number_of_drivers_one_commits_an_epoch(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fenced, "FULL_EVERY", 3)
    monkeypatch.setattr(fenced, "DELETED_A_BEAT", 4)
    world = World(seed)
    world.run(drivers=3, steps=2500)
    end = read_end(world.store)
    for epoch, token in world.acknowledged.items():
        assert end.files.get(f"epochs/{epoch}") == token, f"epoch {epoch} was acknowledged"
    epochs = sorted(int(path.partition("/")[2]) for path in end.files if path.startswith("epochs"))
    assert epochs == [*range(len(epochs))]
    assert set(epochs) <= world.sink.keys(), "an entry stands for outputs that are there"
    for epoch in epochs:
        assert world.sink[epoch] == end.files[f"offsets/{epoch}"]


def test_the_simulation_gets_somewhere() -> None:
    worlds = [World(seed) for seed in range(8)]
    for world in worlds:
        world.run(drivers=3, steps=2500)
    assert sum(len(world.acknowledged) for world in worlds) > 200
    assert sum(world.lost for world in worlds) > 4
    assert sum(world.takes for world in worlds) > 40


class Killed(BaseException):
    """kill -9."""


@dataclass
class World:
    """A store, a sink, and drivers that take turns; one seed, one course of events."""

    seed: int
    store: MemoryStore = field(default_factory=MemoryStore)
    sink: dict[int, bytes] = field(default_factory=dict)
    acknowledged: dict[int, bytes] = field(default_factory=dict)
    lost: int = 0
    takes: int = 0
    newest: int = 0
    """The newest fence that its taker knows to have."""

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.now_s = 0.0
        self.failures: list[BaseException] = []
        self.ended = False

    def run(self, drivers: int, steps: int) -> None:
        actors = [Actor(self, number) for number in range(drivers)]
        for _ in range(steps):
            ready = [each for each in actors if each.wakes_s <= self.now_s]
            if not ready:
                self.now_s = min(each.wakes_s for each in actors)
                continue
            self.random.choice(ready).turn()
            self.now_s += self.random.choice([0.001, 0.01, 0.05])
        self.ended = True
        for each in actors:
            each.turn()
            each.thread.join()
        if self.failures:
            raise self.failures[0]


class Actor(Clock):
    """One driver after the other on one machine; also its clock."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world.seed * 100 + number)
        self.world, self.wakes_s = world, 0.0
        self.store = Network(self)
        self._go, self._waits = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self._live, daemon=True)
        self.thread.start()

    def turn(self) -> None:
        """Let it do one step."""
        self._go.release()
        if not self.world.ended:
            self._waits.acquire()

    def step(self) -> None:
        """Wait for the turn; now and then for longer than a lease, or for ever."""
        chance = self.world.random.random()
        if chance < 0.004:
            self.wakes_s = self.world.now_s + self.world.random.choice([1, 4, 20])
        self._await_turn()
        if chance > 0.998:
            raise Killed

    def _await_turn(self) -> None:
        self._waits.release()
        self._go.acquire()
        if self.world.ended:
            raise SystemExit

    def monotonic_s(self) -> float:  # type: ignore[override]
        return self.world.now_s

    def pause(self, seconds: float, woken: int | None = None) -> None:
        self.wakes_s = self.world.now_s + seconds
        self._await_turn()

    def _live(self) -> None:
        self._go.acquire()
        gone = ""
        try:
            while not self.world.ended:
                writer = None
                try:
                    writer = take(self.store, self, gone={gone}, lease_ms=LEASE_MS)
                    gone = writer.mine.token
                    self.world.takes += 1
                    self.world.newest = max(self.world.newest, writer.fence)
                    self._drive(writer)
                except LeaseLost:
                    self.world.lost += 1
                except (LeaseHeld, StoreUnavailable):
                    pass
                except Killed:
                    pass
                self.pause(self.random.choice([0.1, 1, 5]))
        except SystemExit:
            pass
        # This is a thread: what it raises, a failed assertion too, the test's own thread raises.
        except BaseException as error:  # noqa: BLE001
            self.world.failures.append(error)
            while not self.world.ended:
                self.wakes_s = self.world.now_s + 1000
                self._await_turn()
        finally:
            self._waits.release()

    def _drive(self, writer: Writer) -> None:
        world = self.world
        for _ in range(self.random.choice([3, 10, 40])):
            epoch = sum(path.startswith("epochs/") for path in writer.files)
            if f"offsets/{epoch}" not in writer.files:
                self._append(writer, {f"offsets/{epoch}": self.token().encode()})
            writer.look()
            self.step()  # here it may sleep: the sink has to tell by itself
            planned = writer.files[f"offsets/{epoch}"]
            if epoch in world.sink:
                assert world.sink[epoch] == planned, "the sink has the epoch with other content"
            else:
                assert epoch == len(world.sink), "the sink would have a gap"
                world.sink[epoch] = planned
            token = self.token().encode()
            self._append(writer, {f"epochs/{epoch}": token})
            assert epoch not in world.acknowledged, "two drivers have committed an epoch"
            world.acknowledged[epoch] = token
            if self.random.random() < 0.7:
                writer.beat()
        writer.beat(released=True)

    def _append(self, writer: Writer, changes: dict[str, bytes | None]) -> None:
        newest = self.world.newest
        writer.append(changes)
        assert writer.fence >= newest, "a superseded driver has committed"


class Network:
    """The store as one driver sees it: requests and answers get lost, and take their time."""

    def __init__(self, actor: Actor) -> None:
        self._actor, self._store = actor, actor.world.store

    def _send(self, call: Callable[[], int]) -> int:
        self._actor.step()
        chance = self._actor.world.random.random()
        if chance < 0.005:
            raise StoreUnavailable("The request was lost.")
        answer = call()
        self._actor.step()
        if chance > 0.99:
            raise StoreUnavailable("The answer was lost.")
        return answer

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        return self._send(lambda: self._store.put(key, parts))

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        return self._send(lambda: self._store.put_if_absent(key, parts))

    def get(self, key: str) -> bytes:
        self._send(lambda: 0)
        return self._store.get(key)

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        return self._store.get_range(key, offset, size)

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        return self._store.get_upto(key, offset, max_bytes)

    def size(self, key: str) -> int:
        return self._send(lambda: self._store.size(key))

    def delete(self, key: str) -> None:
        self._send(lambda: 0)
        self._store.delete(key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def url(self, key: str = "") -> str:
        return self._store.url(key)
