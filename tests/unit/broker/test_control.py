"""Plans for committed records: read from storage, they give what a model and the leader give.

A real log is written to, packed and compacted; its control API and its reads answer without
sockets, and Spark's readers are the client.
"""

import asyncio
import http.client
import json
import random
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.log.shared import World

from catchwater.broker.control import plans
from catchwater.broker.control.app import create_app
from catchwater.broker.gate import AllowAll
from catchwater.broker.metrics import Metrics
from catchwater.broker.quotas import ConfiguredLimits, ReplayQuotas
from catchwater.broker_config import BrokerConfig, LogConfig
from catchwater.clock import ManualClock
from catchwater.kafka_listeners import Address
from catchwater.log.format import segment
from catchwater.log.format.chunk import ADDS_PARTITION
from catchwater.log.log import Log
from catchwater.log.read import history
from catchwater.log.transactions import Producer
from catchwater.log.write.writer import Submission
from catchwater.objects.local import LocalStore
from catchwater.replay import read as read_module
from catchwater.replay.control import Control
from catchwater.replay.plan import OffsetRange, Slice, cut, slices_of
from catchwater.replay.read import ReadSettings, read_task
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import Fetched

# Without a cache of the tail, which compaction does not reach, the leader reads storage too.
QUIET = LogConfig(background=False, catalog_lag_ms=3_600_000, cache_bytes=1)
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
SETTINGS = ReadSettings(
    "h:1", ("key", "value", "offset"), "http://127.0.0.1:1", read_committed=True
)
PARTITIONS = 2
KEYS = 4

T = TypeVar("T")
Row = tuple[int, bytes, bytes]
"""Offset, key and value."""


@dataclass
class Written:
    """A log's topic, and beside it what should be visible there."""

    log: Log
    visible: list[list[Row]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    open: dict[int, list[tuple[int, Row]]] = field(default_factory=dict)
    """By who: what was written, with its partition, since the transaction began."""
    _producers: dict[int, Producer] = field(default_factory=dict)
    _sequences: dict[tuple[Producer, int], int] = field(default_factory=dict)
    _serial: int = 0

    async def write(self, *batches: tuple[int | None, int, int]) -> None:
        """All at once: (who, partition, count); nobody's batches are outside of transactions."""
        made = [await self._batch(*each) for each in batches]
        answers = await self.log.submit([submission for submission, _ in made])
        for answer, (_, records), (who, partition, _) in zip(answers, made, batches, strict=True):
            assert answer.error is ErrorCode.NONE
            rows = [(answer.base_offset + n, *record) for n, record in enumerate(records)]
            if who is None:
                self.visible[partition] += rows
            else:
                self.open.setdefault(who, []).extend((partition, row) for row in rows)

    async def end(self, who: int, *, committed: bool) -> None:
        if who not in self.open:
            return
        self._producers[who] = await self.log.txns.end(
            f"id{who}", self._producers[who], committed=committed, version=2
        )
        rows = self.open.pop(who)
        for partition, row in rows if committed else ():
            self.visible[partition].append(row)

    def expected(self, partition: int, start: int, end: int) -> list[Row]:
        return sorted(row for row in self.visible[partition] if start <= row[0] < end)

    def stable(self, partition: int) -> int:
        """Where the first open transaction begins, or the end."""
        still_open = [row[0] for rows in self.open.values() for p, row in rows if p == partition]
        end = self.log.state((self.log.topics.find("t").id, partition)).high_watermark
        return min(still_open, default=end)

    async def _batch(
        self, who: int | None, partition: int, count: int
    ) -> tuple[Submission, list[tuple[bytes, bytes]]]:
        records = []
        for _ in range(count):
            self._serial += 1
            records.append((b"%d" % (self._serial % KEYS), b"%d" % self._serial))
        named: dict[str, Any] = {}
        if who is not None:
            if who not in self._producers:
                self._producers[who] = await self.log.txns.init_producer(f"id{who}", 60_000)
            producer = self._producers[who]
            base = self._sequences.get((producer, partition), 0)
            self._sequences[producer, partition] = base + count
            named = {
                "producer_id": producer.id,
                "producer_epoch": producer.epoch,
                "base_sequence": base,
                "transactional": True,
            }
        codec = 4 if self._serial % 3 == 0 else 0
        data = memoryview(encode_batch([(*r, 1000, ()) for r in records], codec=codec, **named))
        header = read_header(data)
        if who is not None:
            header = header._replace(attributes=header.attributes | ADDS_PARTITION)
        key = (self.log.topics.find("t").id, partition)
        return Submission(key, header, data), records


class Wires:
    """What the stand-ins below are connected to: one log, and the event loop it lives on."""

    log: Log
    app: Any
    loop: asyncio.AbstractEventLoop

    @classmethod
    def wait(cls, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, cls.loop).result(30)


async def beside(work: Callable[[], T]) -> T:
    """In a thread that is not the loop's one: the log may need that one meanwhile."""
    with ThreadPoolExecutor(1) as thread:
        return await asyncio.get_running_loop().run_in_executor(thread, work)


class Connection:
    """Stands in for HTTP to the control API."""

    def __init__(self, host: str, port: int, timeout: float) -> None: ...

    def request(self, method: str, path: str, body: str, headers: object) -> None:
        called = _asgi(Wires.app, method, path, body.encode())
        self.status, self.content = Wires.wait(called)

    def getresponse(self) -> "Connection":
        return self

    def read(self) -> bytes:
        return self.content

    def close(self) -> None: ...


class Leader:
    """Stands in for the Kafka client: every Fetch brings a batch or a few."""

    def __init__(self, bootstrap: str, **_: object) -> None: ...

    def __enter__(self) -> "Leader":
        return self

    def __exit__(self, *_: object) -> None: ...

    def fetch(
        self, wanted: dict[tuple[str, int], int], *, read_committed: bool, **_: object
    ) -> dict[tuple[str, int], Fetched]:
        ((key, offset),) = wanted.items()
        place = (Wires.log.topics.find("t").id, key[1])
        read = Wires.wait(
            Wires.log.read(place, offset, 300, at_least_one=True, committed=read_committed)
        )
        aborted = tuple((row.producer_id, row.first_offset) for row in read.aborted)
        records = memoryview(b"".join(read.parts))
        return {key: Fetched(records, read.high_watermark, 0, read.error, aborted)}


class Serving(SimpleNamespace):
    """The parts of a broker that plans are made of."""

    def __init__(self, log: Log, quotas: ReplayQuotas) -> None:
        super().__init__(
            log=log, replay_quotas=quotas, clock=ManualClock(), control_url="",
            config=BrokerConfig(), kafka_address=Address("127.0.0.1", 1), guard=None, audit=None,
            gate_of=lambda *_: AllowAll(), metrics=Metrics(),
        )  # fmt: skip


@contextmanager
def served(log: Log) -> Iterator[None]:
    """The log's control API and its leader, for readers in other threads."""
    Wires.log, Wires.loop = log, asyncio.get_running_loop()
    quotas = ReplayQuotas(ConfiguredLimits(-1, {}), ManualClock())
    broker = Serving(log, quotas)
    Wires.app = create_app(cast(Any, broker))
    with (
        patch.object(http.client, "HTTPConnection", Connection),
        patch.object(read_module, "Client", Leader),
    ):
        yield


async def _asgi(app: Any, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b""}
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent)


def rows_of(slices: Sequence[Slice], tasks: int = 1) -> list[Row]:
    """What Spark's tasks read, in order."""
    return [
        (row["offset"], row["key"], row["value"])
        for task in cut(slices, tasks)
        for batch in read_task(task, SETTINGS)
        for row in batch.to_pylist()
    ]


async def from_storage(partition: int, start: int, end: int, tasks: int = 1) -> list[Row]:
    wanted = [OffsetRange("t", partition, start, end)]

    def read() -> list[Row]:
        plan = Control("http://127.0.0.1:1").plan(wanted, read_committed=True)
        assert not plan.missing
        return rows_of(slices_of(wanted, plan.ranges, plan.aborted), tasks)

    return await beside(read)


async def from_leader(partition: int, start: int, end: int) -> list[Row]:
    return await beside(partial(rows_of, [Slice("t", partition, start, end)]))


@contextmanager
def small_ranges() -> Iterator[None]:
    """Segments and chunks are planned batch by batch, as large ones are by megabytes."""
    with (
        patch.object(history, "PIECE_BYTES", 150),
        patch.object(history, "PLAN_RANGE_BYTES", 300),
        patch.object(segment, "INDEX_STRIDE_BYTES", 100),
        patch.object(segment, "CLEANED_STRIDE_BYTES", 100),
    ):
        yield


# --- whatever is written -------------------------------------------------------------------------

WRITE = st.lists(
    st.tuples(st.sampled_from([None, 0, 1, 2]), st.integers(0, PARTITIONS - 1), st.integers(1, 4)),
    min_size=1,
    max_size=5,
)
END = st.tuples(st.integers(0, 2), st.booleans())
ACTIONS = st.lists(
    st.one_of(WRITE, END, END, st.sampled_from(["pack", "compact"])), min_size=5, max_size=40
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=ACTIONS, compacted=st.booleans(), seed=st.integers(0, 2**32))
def test_storage_gives_what_the_model_says_and_what_the_leader_gives(
    actions: list[Any], compacted: bool, seed: int
) -> None:
    async def check(root: Path) -> None:
        log = await Log.open(root, QUIET, ManualClock())
        try:
            await log.create_topic("t", PARTITIONS, COMPACTED if compacted else {})
            written = Written(log)
            for action in actions:
                await _act(written, action)
            with served(log):
                await _compare(written, random.Random(seed), compacted)
        finally:
            await log.close()

    with tempfile.TemporaryDirectory() as folder, small_ranges():
        asyncio.run(check(Path(folder)))


async def _act(written: Written, action: Any) -> None:
    if action == "pack":
        await written.log.keeping.pack()
    elif action == "compact":
        await written.log.keeping.compact()
    elif isinstance(action, tuple):
        await written.end(action[0], committed=action[1])
    else:
        await written.write(*action)


async def _compare(written: Written, choice: random.Random, compacted: bool) -> None:
    for partition in range(PARTITIONS):
        stable = written.stable(partition)
        key = (written.log.topics.find("t").id, partition)
        assert await written.log.stability.last_stable_offset(key) == stable
        some = [sorted(choice.choices(range(stable + 1), k=2)) for _ in range(4)]
        for start, end in [[0, stable], *some]:
            if start == end:
                continue
            found = await from_storage(partition, start, end, choice.randint(1, 4))
            assert found == await from_leader(partition, start, end)
            expected = written.expected(partition, start, end)
            if not compacted:
                assert found == expected
                continue
            assert set(found) <= set(expected)
            if (start, end) == (0, stable):
                assert _latest(found) == _latest(expected)


def _latest(rows: list[Row]) -> dict[bytes, Row]:
    return {row[1]: row for row in sorted(rows)}


# --- one thing at a time -------------------------------------------------------------------------


@pytest.fixture(params=["alone", "among others"])
async def written(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """A log in each of its two modes."""
    if request.param == "alone":
        log = await Log.open(tmp_path, QUIET, ManualClock())
        close: Callable[[], Awaitable[None]] = log.close
    else:
        world = World()
        world.store = LocalStore(tmp_path, world.clock)
        log, close = await world.log(1), world.close
    await log.create_topic("t", PARTITIONS)
    with served(log):
        yield Written(log)
    await close()


async def answer(isolation: str | None, *ranges: tuple[int, int, int]) -> dict[str, Any]:
    """The control API's plan, as JSON."""
    body: dict[str, Any] = {
        "topic": "t",
        "ranges": [{"partition": p, "start": start, "end": end} for p, start, end in ranges],
    }
    if isolation:
        body["isolation"] = isolation
    status, content = await _asgi(Wires.app, "POST", "/api/v1/plans", json.dumps(body).encode())
    return {"status": status, **json.loads(content)}


async def test_a_plan_names_the_aborted_transactions_that_reach_into_it(written: Written) -> None:
    await written.write((0, 0, 3), (1, 0, 2), (0, 1, 1))  # 0 to 2, 3 to 4; 0
    await written.end(0, committed=False)  # 5; 1
    await written.write((None, 0, 4))  # 6 to 9
    await written.end(1, committed=False)  # 10
    first, second = ((p.id) for p in written._producers.values())
    whole = await answer("read_committed", (0, 0, 11), (1, 0, 2))
    pieces = await answer("read_committed", (0, 0, 4), (0, 4, 11), (1, 0, 2))
    assert pieces["aborted"] == whole["aborted"], "one that reaches into both is listed once"
    names = ("partition", "producer_id", "first_offset", "last_offset")
    assert [tuple(each[name] for name in names) for each in whole["aborted"]] == [
        (0, first, 0, 5),
        (0, second, 3, 10),
        (1, first, 0, 1),
    ]
    assert whole["last_stable_offset"] == {"0": 11, "1": 2}
    later = await answer("read_committed", (0, 6, 8))
    assert [each["producer_id"] for each in later["aborted"]] == [second]
    plain = await answer(None, (0, 0, 11))
    assert plain.keys() == {"status", "topic", "ranges", "log_start", "high_watermark"}
    assert plain == await answer("read_uncommitted", (0, 0, 11))
    assert plain["ranges"] == whole["ranges"][: len(plain["ranges"])]
    assert (await answer("serializable", (0, 0, 11)))["status"] == 400


@pytest.mark.parametrize("packed", [False, True])
async def test_what_was_aborted_outside_of_the_wanted_range_voids_nothing_in_it(
    written: Written, packed: bool
) -> None:
    await written.write((0, 0, 3))  # 0 to 2
    await written.end(0, committed=False)  # 3
    await written.write((0, 0, 3))  # 4 to 6
    await written.end(0, committed=True)  # 7
    await written.write((0, 0, 3))  # 8 to 10
    await written.end(0, committed=False)  # 11
    if packed:
        assert await written.log.keeping.pack() == 1
    inside = await answer("read_committed", (0, 4, 8))
    assert inside["aborted"] == []
    assert await from_storage(0, 4, 8) == written.expected(0, 0, 12) != []
    for start, end in [(0, 12), (0, 5), (6, 12), (2, 7), (3, 4), (8, 12)]:
        assert await from_storage(0, start, end) == written.expected(0, start, end)


async def test_a_plan_ends_where_a_transaction_is_open_and_misses_nothing(
    written: Written,
) -> None:
    await written.write((None, 0, 4), (0, 0, 2), (None, 0, 3))  # 0 to 3, 4 to 5, 6 to 8
    found = await answer("read_committed", (0, 0, 9), (1, 0, 0))
    assert (found["status"], found["last_stable_offset"]) == (200, {"0": 4, "1": 0})
    ends = [each["last_offset"] for each in found["ranges"]]
    assert max(ends) >= 3
    beyond = await answer("read_committed", (0, 0, 12))
    assert (beyond["status"], beyond["missing"]) == (
        416,
        [{"partition": 0, "start": 9, "end": 12}],
    )
    assert (await answer("read_committed", (0, 6, 9)))["ranges"] == []
    assert await from_storage(0, 0, 4) == written.expected(0, 0, 4)
    await written.end(0, committed=False)
    assert await from_storage(0, 0, 9) == written.expected(0, 0, 9)


async def test_a_new_plan_for_an_object_that_is_gone_says_again_what_was_aborted(
    written: Written,
) -> None:
    await written.write((0, 0, 2), (None, 0, 2), (1, 0, 2))
    await written.end(0, committed=False)
    await written.end(1, committed=True)
    wanted = [OffsetRange("t", 0, 1, 8)]

    def read() -> list[Row]:
        plan = Control("http://127.0.0.1:1").plan(wanted, read_committed=True)
        gone = [replace(each, url=each.url + ".gone") for each in plan.ranges]
        return rows_of(slices_of(wanted, gone))

    assert await beside(read) == written.expected(0, 1, 8) != []


async def asked(
    log: Log, method: str, url: str, body: object = None, client: str = "127.0.0.1"
) -> tuple[int, bytes]:
    """One request to the control API, from an address."""
    quotas = ReplayQuotas(ConfiguredLimits(-1, {}), ManualClock())
    broker = Serving(log, quotas)
    path, _, query = url.partition("?")
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(),
        "headers": [], "client": (client, 1),
    }  # fmt: skip
    await create_app(cast(Any, broker))(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent)


def wanted(*ranges: tuple[int, int, int]) -> dict[str, object]:
    names = ("partition", "start", "end")
    return {"topic": "t", "ranges": [dict(zip(names, each, strict=True)) for each in ranges]}


@pytest.mark.parametrize(
    ("ranges", "status", "code"),
    [
        ([(0, 0, 2), (0, 1, 3)], 400, "INVALID_RANGES"),
        ([(0, 0, 3)] * 5_000, 400, "INVALID_RANGES"),
        ([(0, n, n + 1) for n in range(10_001)], 413, "PLAN_TOO_LARGE"),
    ],
    ids=["overlapping", "repeated", "too many"],
)
async def test_a_request_asks_for_no_offset_twice_and_for_no_end_of_ranges(
    written: Written, ranges: list[tuple[int, int, int]], status: int, code: str
) -> None:
    await written.write((None, 0, 3))
    answer = await asked(written.log, "POST", "/api/v1/plans", wanted(*ranges))
    assert (answer[0], json.loads(answer[1])["error"]) == (status, code)


def test_the_audit_trail_has_a_short_line_of_a_long_plan() -> None:
    ranges = [plans._Range(n % 5_000, n, n + 1) for n in range(plans.MOST_RANGES)]
    found = plans._asked(plans._PlanBody("t", ranges))
    assert (found["partitions"], found["offsets"]["7"]) == (5_000, [7, 5_008])
    assert len(json.dumps(found)) < 4_000


async def test_a_plan_that_would_be_too_large_is_asked_for_in_parts(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(8):
        await written.write((None, 0, 1), (None, 1, 1))
    monkeypatch.setattr("catchwater.broker.control.plans.MOST_PLACES", 3)
    status, answer = await asked(written.log, "POST", "/api/v1/plans", wanted((0, 0, 8)))
    assert (status, json.loads(answer)["error"]) == (413, "PLAN_TOO_LARGE")
    with served(written.log):
        both = [OffsetRange("t", 0, 0, 8), OffsetRange("t", 1, 0, 8)]
        plan = await beside(lambda: Control("http://127.0.0.1:1").plan(both))
    found = [(each.partition, each.base_offset) for each in plan.ranges]
    assert found == [(p, n) for p in (0, 1) for n in range(8)]


async def test_a_reader_elsewhere_gets_bytes_from_the_broker_and_these_alone(
    written: Written,
) -> None:
    await written.write((None, 0, 3), (None, 1, 3))
    here = json.loads((await asked(written.log, "POST", "/api/v1/plans", wanted((0, 0, 3))))[1])
    (local,) = here["ranges"]
    assert local["url"].startswith("file:")
    answer = await asked(written.log, "POST", "/api/v1/plans", wanted((0, 0, 3)), "203.0.113.9")
    (remote,) = json.loads(answer[1])["ranges"]
    assert remote["url"].startswith("/api/v1/bytes/")
    status, data = await asked(written.log, "GET", remote["url"], client="203.0.113.9")
    with open(local["url"].removeprefix("file://"), "rb") as file:
        file.seek(local["byte_offset"])
        assert (status, data) == (206, file.read(local["byte_size"]))
    path, _, query = remote["url"].partition("?")
    for changed in (
        path,
        f"{path}?{query.replace('from=', 'from=1')}",
        f"{path}?{query.replace('size=', 'size=1')}",
        f"{path}?{query.replace('until=', 'until=9')}",
        f"{path}x?{query}",
        f"{path}?{query}0",
    ):
        status, _ = await asked(written.log, "GET", changed, client="203.0.113.9")
        assert status == 403, changed
    late = ManualClock()
    late.advance(16 * 60_000)
    with patch(f"{__name__}.ManualClock", lambda: late):
        status, _ = await asked(written.log, "GET", remote["url"], client="203.0.113.9")
    assert status == 403
