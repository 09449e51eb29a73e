"""Clients beyond produce and fetch: records deleted under pins, sink epochs, group positions."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from tests.simulation.clients import RETRIABLE, Client, Place, WatermarkWatcher, visible
from tests.simulation.network import Lost, Refused
from tests.simulation.records import build
from tests.simulation.txns import committed_offset
from tests.simulation.world import World

from catchwater.catalog.errors import EpochGap
from catchwater.catalog.rows import EpochCommit, Pin
from catchwater.config import CatchwaterError
from catchwater.drill.history import LedgerLine, SendLine, TrimLine, Type
from catchwater.log.core import RangeMissing
from catchwater.log.format import chunk
from catchwater.log.log import Log
from catchwater.wire.batch import read_header
from catchwater.wire.errors import ErrorCode

T = TypeVar("T")


class Insider(Client):
    """Calls a broker's log directly, as its control API would."""

    world: World

    async def of_some_log(self, work: Callable[[Log], Awaitable[T]]) -> T:
        """What the call comes to. Raises `Lost`, `Refused`, or what it raises."""
        machine = self.random.choice(self.world.machines)
        if not machine.is_serving:
            await self.rest(0.1)
            raise Refused
        log = machine.log
        task = await machine.begin(lambda: work(log))
        if task is None:
            raise Lost
        await asyncio.wait([task], timeout=5)
        if not task.done() or task.cancelled():
            raise Lost
        return task.result()


class Trimmer(Insider):
    """Deletes records, and pins some for a while: what is pinned stays readable."""

    repeats = False
    """The copy of a request that was refused for a pin may be carried out once the pin is gone."""

    def __init__(self, world: World, process: int, seed: int, place: Place) -> None:
        super().__init__(world, process, seed)
        self.place = place
        self.watcher = WatermarkWatcher(world, process, seed, [place])
        self.trimmed = 0
        self.pins = 0

    async def run(self) -> None:
        while not self.world.is_stopping:
            await self.rest(1)
            error, end = await self.watcher.end_of(self.place)
            if error is ErrorCode.NONE and end > self.trimmed:
                await self._trim_beside_a_pin(end)

    async def _trim_beside_a_pin(self, end: int) -> None:
        held = self.random.randrange(self.trimmed, end)
        self.pins += 1
        pin = Pin(f"pin-{self.pins}", "simulation", {self.place: held}, None, 0)
        try:
            await self.of_some_log(lambda log: log.set_pin(pin))
        except (Lost, Refused, RangeMissing, CatchwaterError):
            return
        for _ in range(self.random.randrange(1, 4)):
            await self._delete(self.random.randrange(self.trimmed, end + 1))
            await self._read_pinned(held)
            await self.rest(0.5)
        await self._release(pin)

    async def _delete(self, offset: int) -> None:
        wanted = {"partition_index": self.place[1], "offset": offset}
        fields = {"topics": [{"name": self.place[0], "partitions": [wanted]}], "timeout": 3_000}
        try:
            reply = await self.call(21, 2, fields)
        except Refused:
            return
        except Lost:
            self._tell(offset)
            return
        error = ErrorCode(reply.topics[0].partitions[0].error_code.value)
        if error is not ErrorCode.POLICY_VIOLATION and error is not ErrorCode.OFFSET_OUT_OF_RANGE:
            self._tell(offset)

    def _tell(self, offset: int) -> None:
        """It was deleted, or may have been, or will be."""
        topic, partition = self.place
        self.trimmed = max(self.trimmed, offset)
        line = TrimLine(
            process=self.process, type="ok", topic=topic, partition=partition, offset=offset
        )
        self.world.record(line)

    async def _read_pinned(self, held: int) -> None:
        fetched = await self.fetch(self.place, held, read_committed=False)
        if fetched is None or fetched.error in RETRIABLE:
            return
        records, _ = visible(fetched, held, committed_only=False)
        if fetched.error is not ErrorCode.NONE or not records or records[0].offset != held:
            self.world.fail(
                f"the pinned offset {held} of {self.place} was answered {fetched.error.name}; "
                f"the log begins at {fetched.log_start}"
            )

    async def _release(self, pin: Pin) -> None:
        for _ in range(100):
            try:
                await self.of_some_log(lambda log: log.release_pin(pin.id))
            except (Lost, Refused, CatchwaterError):
                await self.rest(0.3)
            else:
                return


class Sink(Insider):
    """Writes epochs: staged chunks and one commit each, again and again until it is certain."""

    def __init__(self, world: World, process: int, seed: int, place: Place) -> None:
        super().__init__(world, process, seed)
        self.place = place
        self.staged = 0

    async def run(self) -> None:
        epoch = 0
        while not self.world.is_stopping:
            await self._write(epoch)
            epoch += 1
            await self.rest(0.8)

    async def _write(self, epoch: int) -> None:
        values = [f"{self.process}.{epoch}.{n}" for n in range(self.random.randrange(1, 4))]
        self._tell(values, "invoke", None)
        keys: list[str] = []
        answers = 0
        while answers < 1 or self.random.random() < 0.3:
            if not keys or self.random.random() < 0.3:
                keys = [self._stage(values)]  # the task was run again
            try:
                commit = await self.of_some_log(partial(self._commit, epoch, keys))
            except EpochGap as gap:
                self.world.fail(f"epoch {epoch} of sink {self.process}: {gap}")
                return
            except (Lost, Refused, CatchwaterError):
                await self.rest(0.3)
                continue
            answers += 1
            first, last = commit.offsets[self.place[1]]
            says = f"{first} to {last}"
            self.world.record(
                LedgerLine(
                    process=self.process,
                    type="ok",
                    name=f"sink-{self.process}",
                    epoch=epoch,
                    part=f"answer {answers}",
                    says=says,
                )
            )
            if answers == 1:
                self._tell(values, "ok", first)

    async def _commit(self, epoch: int, staged: list[str], log: Log) -> EpochCommit:
        name = f"sink-{self.process}"
        return await log.epochs.commit("simulated", name, epoch, self.place[0], staged, "sum")

    def _stage(self, values: list[str]) -> str:
        """What a task of the pipeline leaves in the store."""
        topic = self.world.topic(self.place[0])
        data = build([(None, value) for value in values], timestamp_ms=self.timestamp_ms())
        batch = ((topic.id, self.place[1]), read_header(memoryview(data)), data)
        parts, _ = chunk.encode([batch], self.timestamp_ms())
        self.staged += 1
        key = f"staged/{self.process}/{self.staged}.chunk"
        self.world.bucket.put(key, parts)
        return key

    def _tell(self, values: list[str], outcome: Type, first: int | None) -> None:
        for index, value in enumerate(values):
            offset = None if first is None else first + index
            line = SendLine(*self.place, value, None, offset, process=self.process, type=outcome)
            self.world.record(line)


class GroupMember(Client):
    """Joins a group once, commits positions that nobody else commits, and asks for them.

    Once it was given its assignment, no coordinator may forget it, whatever befalls the brokers.
    """

    repeats = False

    def __init__(self, world: World, process: int, seed: int, place: Place) -> None:
        super().__init__(world, process, seed)
        self.place = place
        self.group = f"group-{process}"
        self.member: dict[str, Any] = {}
        self.certain = -1
        # Commits of one generation are not fenced: one that is late may still overwrite.
        self.uncertain: set[int] = set()

    async def run(self) -> None:
        position = 0
        while not self.world.is_stopping and not self.member:
            await self._join()
        while not self.world.is_stopping:
            position += self.random.randrange(1, 5)
            await self._commit(position)
            if self.random.random() < 0.3:
                await self._compare()
            if self.random.random() < 0.5:
                await self._beat()
            await self.rest(0.6)

    async def _join(self) -> None:
        """Become a member, or be in doubt, and begin again as one of another group."""
        who = {"group_id": self.group, "group_instance_id": "i"}
        range_assignor = {"name": "range", "metadata": b""}
        times = {
            "session_timeout": 1_800_000,
            "rebalance_timeout": 60_000,
        }
        asks = {"protocol_type": "consumer", "protocols": [range_assignor]}
        try:
            joined = await self.call(11, 5, {**who, **times, **asks, "member_id": ""})
            if joined.error_code.value == 0:
                me = {**who, "member_id": joined.member_id}
                share = {"member_id": joined.member_id, "assignment": b"all"}
                fields = {**me, "generation_id": joined.generation_id, "assignments": [share]}
                synced = await self.call(14, 3, fields)
                if synced.error_code.value == 0:
                    self.member = {**me, "generation_id": joined.generation_id}
                    return
            self.may_move()
        except (Lost, Refused):
            # It may arrive yet, and take the place of whoever has joined meanwhile.
            self.group += "+"
        await self.rest(0.3)

    async def _beat(self) -> None:
        try:
            self._judge((await self.call(12, 3, self.member)).error_code)
        except (Lost, Refused):
            return

    def _judge(self, error: Any) -> None:
        """Nothing but to look for the coordinator, or to try again, may be told."""
        code = ErrorCode(error.value)
        if code in RETRIABLE:
            self.may_move()
        elif code is not ErrorCode.NONE:
            self.world.fail(f"{self.group} has lost its only member: {code.name}")

    async def _commit(self, position: int) -> None:
        partition = {
            "partition_index": self.place[1],
            "committed_offset": position,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        fields = {
            **{key: value for key, value in self.member.items() if key != "generation_id"},
            "generation_id_or_member_epoch": self.member["generation_id"],
            "topics": [{"name": self.place[0], "partitions": [partition]}],
        }
        self.uncertain.add(position)
        try:
            reply = await self.call(8, 7, fields)
        except (Lost, Refused):
            return
        error = reply.topics[0].partitions[0].error_code
        self._judge(error)
        if error.value == 0:
            self.uncertain.discard(position)
            self.certain = position

    async def _compare(self) -> None:
        found = await committed_offset(self, self.group, self.place)
        if found != self.certain and found not in self.uncertain:
            self.world.fail(f"group {self.group} is at {found}, yet {self.certain} was committed")
