"""What lies between a simulated broker and its catalog and store: distance, weather, and the end.

Every request that changes something travels for a while, takes effect in one instant, and its
answer travels back; a mere look is taken at once, and what was seen arrives later. The weather
decides by the seed which requests are slow, are refused, lose their answer, or take effect long
after the broker gave them up. A broker that was cut off reaches nothing any more.

A commit whose outcome the broker was not told may still be under way in the database: it then has
its locks, so it takes effect before any other change does, but a mere query does not see it yet.
"""

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar

from tests.simulation.loop import Hand, Killed, Node, VirtualLoop, current_hand

from catchwater.catalog.db import Db
from catchwater.catalog.errors import CatalogUnavailable, CatalogUncertain
from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase
from catchwater.catalog.rows import Changes, Notice, Scope, ScopeRows
from catchwater.clock import Clock
from catchwater.objects.base import (
    Buffer,
    ObjectInfo,
    ObjectStore,
    Part,
    StoreError,
    StoreUnavailable,
)

T = TypeVar("T")
EPOCH_MS = 1_700_000_000_000


@dataclass
class Weather:
    """Chances of 0 to 1 per request, and how much slower than usual everything is."""

    slow: float = 1.0
    store_refuses: float = 0.0
    store_loses_answer: float = 0.0
    store_is_late: float = 0.0
    """The request is given up, and takes effect seconds later."""
    store_truncates: float = 0.0
    catalog_refuses: float = 0.0
    catalog_is_uncertain: float = 0.0
    notice_is_lost: float = 0.0
    network_loses: float = 0.0
    """Requests and replies between clients and brokers; half of each."""
    network_repeats: float = 0.0
    """A request arrives again, later."""

    def clear(self) -> None:
        for each in fields(self):
            setattr(self, each.name, each.default)


class SimulatedClock(Clock):
    """One machine's clock: wall-clock time may be wrong and jump, the other one never is."""

    def __init__(self, loop: VirtualLoop, seed: int) -> None:
        super().__init__(seed)
        self._loop = loop
        self.wrong_by_ms = 0

    def now_ms(self) -> int:
        return EPOCH_MS + int(self._loop.time() * 1000) + self.wrong_by_ms

    def monotonic_s(self) -> float:
        return self._loop.time()

    def pause(self, seconds: float) -> None:
        hand = current_hand()
        assert hand is not None, "the loop was blocked"
        hand.wait(max(0.0, seconds))


class Gate:
    """What one broker's catalog and store share: the way there."""

    def __init__(
        self,
        loop: VirtualLoop,
        node: Node,
        weather: Weather,
        seed: random.Random,
        fail: Callable[[str], None],
        unreachable: Collection[str],
    ) -> None:
        """`unreachable` may change: of "catalog" and "store", those it has no way to."""
        self.fail = fail
        self.unreachable = unreachable
        self.loop = loop
        self.node = node
        self.weather = weather
        self.random = seed

    def distance_s(self, usual_s: float) -> float:
        """Mostly about as usual, sometimes far longer."""
        drawn = self.random.random()
        return usual_s * self.weather.slow * (0.5 + drawn + (20 if drawn > 0.99 else 0))

    def happens(self, chance: float) -> bool:
        return chance > 0 and self.random.random() < chance

    def hand(self) -> Hand | None:
        """The hand that asks, if its machine is still there."""
        hand = current_hand()
        if hand is not None and self.node.is_cut:
            raise Killed
        return hand


class GatedStore:
    """Another store, at a distance."""

    USUAL_S = 0.015

    def __init__(self, store: ObjectStore, gate: Gate) -> None:
        self._store = store
        self._gate = gate

    def put(self, key: str, parts: Sequence[Buffer]) -> int:
        return self._write(partial(self._store.put, key, [bytes(part) for part in parts]))

    def put_if_absent(self, key: str, parts: Sequence[Buffer]) -> int:
        return self._write(partial(self._store.put_if_absent, key, [bytes(p) for p in parts]))

    def delete(self, key: str) -> None:
        self._write(partial(self._store.delete, key))

    def get(self, key: str) -> bytes:
        return self._read(partial(self._store.get, key))

    def get_range(self, key: str, offset: int, size: int) -> bytes:
        return self._read(partial(self._store.get_range, key, offset, size))

    def get_upto(self, key: str, offset: int, max_bytes: int) -> bytes:
        return self._read(partial(self._store.get_upto, key, offset, max_bytes))

    def size(self, key: str) -> int:
        return self._read(partial(self._store.size, key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._read(lambda: list(self._store.list(prefix))))

    def url(self, key: str = "", part: Part | None = None) -> str:
        return self._store.url(key, part)

    def _write(self, effect: Callable[[], T]) -> T:
        gate, weather = self._gate, self._gate.weather
        hand = gate.hand()
        assert hand is not None, "a store was called on the event loop"
        if gate.happens(weather.store_is_late):
            later = partial(self._late, effect)
            gate.loop.call_later(gate.random.uniform(0.5, 30), later, context=Context())
            hand.wait(gate.distance_s(self.USUAL_S * 20))
            raise StoreUnavailable("The store did not answer in time.")
        hand.wait(gate.distance_s(self.USUAL_S), travelling=True)
        if "store" in gate.unreachable:
            hand.wait(gate.distance_s(self.USUAL_S * 20))
            raise StoreUnavailable("There is no way to the store.")
        if gate.happens(weather.store_refuses):
            hand.wait(gate.distance_s(self.USUAL_S))
            raise StoreUnavailable("The store answered 503.")
        try:
            return effect()
        finally:
            if gate.random.random() < 0.5:  # turns cost time, and half of them show as much
                hand.wait(gate.distance_s(self.USUAL_S))
            if gate.happens(weather.store_loses_answer) or "store" in gate.unreachable:
                raise StoreUnavailable("The connection was lost.")

    def _late(self, effect: Callable[[], Any]) -> None:
        try:
            effect()
        except StoreError:
            return  # nobody waits for it

    def _read(self, look: Callable[[], T]) -> T:
        gate, weather = self._gate, self._gate.weather
        hand = gate.hand()
        assert hand is not None, "a store was called on the event loop"
        try:
            return look()
        finally:
            hand.wait(gate.distance_s(2 * self.USUAL_S))
            if "store" in gate.unreachable:
                raise StoreUnavailable("There is no way to the store.")
            if gate.happens(weather.store_refuses) or gate.happens(weather.store_truncates):
                raise StoreUnavailable("The store's answer ended early.")


class Database(MemoryDatabase):
    """The database of all brokers, with the commits that nobody knows the outcome of yet."""

    def __init__(self, clock: Clock, watch: Callable[[Notice], None]) -> None:
        """`watch` sees what every commit tells, in their order."""
        super().__init__(clock, lambda call: call())
        self.add_listener(watch)
        self._under_way: list[Callable[[], None]] = []

    def leave_under_way(self, change: Callable[[], None]) -> Callable[[], None]:
        """Have it take effect before the next change; returns what does so now."""

        def happen() -> None:
            if change in self._under_way:
                self._under_way.remove(change)
                change()

        self._under_way.append(change)
        return happen

    def commit(self, change: Callable[[Db], T]) -> T:
        while self._under_way:
            self._under_way.pop(0)()
        return super().commit(change)


class GatedCatalog(MemoryCatalog):
    """A broker's connections to the database, at a distance."""

    USUAL_S = 0.003

    def __init__(self, database: Database, gate: Gate) -> None:
        super().__init__(database)
        self._shared = database
        self._gate = gate

    def listen(self, notify: Callable[[Notice], None]) -> None:
        """Notices come late, and out of bad weather as one `resync` for many."""
        gate = self._gate

        def deliver(notice: Notice) -> None:
            if gate.node.is_cut:
                return
            if "catalog" in gate.unreachable:
                again = (Notice("resync"),)
                gate.loop.call_later(0.5, deliver, *again, context=gate.node.context)
            else:
                notify(notice)

        def pass_on(notice: Notice) -> None:
            delay_s = gate.distance_s(self.USUAL_S)
            if gate.happens(gate.weather.notice_is_lost):
                notice, delay_s = Notice("resync"), gate.random.uniform(0.5, 5)
            if not gate.node.is_cut:
                gate.loop.call_later(delay_s, deliver, notice, context=gate.node.context)

        super().listen(pass_on)

    def transact(
        self, scope: Scope, decide: Callable[[ScopeRows], tuple[Changes, T]]
    ) -> "Future[T]":
        """Also notes what a session appends that has ended: not one chunk may be taken of it."""

        def noted(seen: ScopeRows) -> tuple[Changes, T]:
            changes, result = decide(seen)
            if scope.session and changes.runs:
                if not self._shared.db.query("broker_lock", *scope.session):
                    self._gate.fail(f"a chunk of the ended session {scope.session} was taken")
            return changes, result

        return super().transact(scope, noted)

    def _commit(self, change: Callable[[Db], T]) -> "Future[T]":
        done: Future[T] = Future()
        hand = self._gate.hand()
        there_s = self._gate.distance_s(self.USUAL_S)
        if hand is not None:
            hand.wait(there_s, travelling=True)
            answer = self._effect(change)
            hand.wait(self._gate.distance_s(self.USUAL_S))
            self._tell(answer, done)
        elif not self._gate.node.is_cut:
            arrive = partial(self._arrive, change, done)
            self._gate.loop.call_later(there_s, arrive, context=Context())
        return done

    def _arrive(self, change: Callable[[Db], T], done: "Future[T]") -> None:
        answer = self._effect(change)
        back_s = self._gate.distance_s(self.USUAL_S)
        self._gate.loop.call_later(back_s, self._answer, answer, done, context=Context())

    def _answer(self, answer: Callable[["Future[T]"], None], done: "Future[T]") -> None:
        if not self._gate.node.is_cut and not done.done():
            self._tell(answer, done)

    def _tell(self, answer: Callable[["Future[T]"], None], done: "Future[T]") -> None:
        if "catalog" in self._gate.unreachable:
            done.set_exception(CatalogUncertain("There is no way to the database any more."))
        else:
            answer(done)

    def _effect(self, change: Callable[[Db], T]) -> Callable[["Future[T]"], None]:
        """Let it happen, or not; what the broker will be told of it."""
        gate, weather = self._gate, self._gate.weather
        if "catalog" in gate.unreachable or gate.happens(weather.catalog_refuses):
            refusal = CatalogUnavailable("The database did not answer.")
            return lambda done: done.set_exception(refusal)
        if gate.happens(weather.catalog_is_uncertain):
            outcome = gate.random.randrange(3)
            if outcome == 0:
                later = self._shared.leave_under_way(lambda: self._try(change))
                gate.loop.call_later(gate.random.uniform(0.01, 3), later, context=Context())
            elif outcome == 1:
                self._try(change)
            lost = CatalogUncertain("The connection was lost while it committed.")
            return lambda done: done.set_exception(lost)
        future = super()._commit(change)
        error = future.exception()
        if error is not None:
            return lambda done: done.set_exception(error)
        result = future.result()
        return lambda done: done.set_result(result)

    def _try(self, change: Callable[[Db], Any]) -> None:
        super()._commit(change).exception()

    def _query(self, read: Callable[[Db], T]) -> T:
        hand = self._gate.hand()
        found = super()._query(read)
        if hand is not None:
            hand.wait(self._gate.distance_s(2 * self.USUAL_S))
            refuses = self._gate.weather.catalog_refuses
            if "catalog" in self._gate.unreachable or self._gate.happens(refuses):
                raise CatalogUnavailable("The database did not answer.")
        return found
