"""Transactional clients: producers that commit, abort and vanish, and a copier.

A transaction's outcome is `ok` or `fail` only where it is certain: `fail` where no commit was ever
asked for, or the first one that may have arrived was refused; `info` where a commit may have
arrived and its answer did not.
"""

from collections.abc import Iterable
from typing import Any

from tests.simulation.clients import RETRIABLE, Client, Place, Surroundings, visible
from tests.simulation.network import Lost, Refused
from tests.simulation.records import build

from catchwater.drill.history import Poll, Send, TxnLine, Type
from catchwater.wire.errors import ErrorCode

TIMEOUT_MS = 10_000


class Broken(Exception):
    """This producer can do no more; a new one has to take over its transactional id."""


class TxnProducer(Client):
    """Writes to several partitions in each transaction."""

    def __init__(
        self,
        world: Surroundings,
        process: int,
        seed: int,
        places: Iterable[Place],
        *,
        version: int,
    ) -> None:
        super().__init__(world, process, seed)
        self.places = list(places)
        self.version = version
        # In version 1 all transactions of a producer have one epoch, so a request that comes late
        # is taken for one of the next transaction; version 2 (KIP-890) mends that. A client of
        # version 1 is safe only if it asks for a new epoch whenever an answer fails to come.
        self.repeats = version == 2
        self.transactional_id = f"txn-{process}"
        self.producer_id = self.epoch = -1
        self.sequences: dict[Place, int] = {}
        self.sent = 0

    async def run(self) -> None:
        while not self.world.is_stopping:
            try:
                await self.initialise()
                while not self.world.is_stopping:
                    await self.transaction()
                    await self.rest(0.5)
            except Broken:
                await self.rest(0.5)

    async def initialise(self) -> None:
        """Fence whoever had this transactional id, and end what it left open."""
        fields = {
            "transactional_id": self.transactional_id,
            "transaction_timeout": TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        self.sequences = {}
        while True:
            reply = await self.insist(22, 4, fields)
            error = ErrorCode(reply.error_code.value)
            if error is ErrorCode.NONE:
                self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch
                return
            if error not in RETRIABLE:
                self.world.fail(f"producer {self.process} was answered {error.name} to its init")
            self.may_move()
            await self.rest(0.4)

    # --- one transaction -------------------------------------------------------------------------

    async def transaction(self) -> None:
        """Begin, write, end. Raises `Broken` where the producer has to start anew."""
        steps: list[Send | Poll] = []
        self.tell("invoke", [])
        try:
            await self.fill(steps)
        except Broken:
            # Nobody has asked for a commit, and with a new epoch nobody can.
            self.tell("fail", steps)
            raise
        fate = self.random.random()
        if fate < 0.08:
            self.tell("fail", steps)
            if self.random.random() < 0.5:
                # It vanished; the coordinator finds out by itself.
                await self.rest(TIMEOUT_MS / 500)
            raise Broken
        await self.end(steps, committed=fate < 0.8)

    async def fill(self, steps: list[Send | Poll]) -> None:
        """What the transaction is for."""
        places = self.random.sample(self.places, self.random.randrange(1, 4))
        await self.announce(places)
        for place in places + self.random.sample(places, 1):
            values = [f"{self.process}.{self.sent + index}" for index in range(2)]
            self.sent += len(values)
            steps += await self.send(place, values[: self.random.randrange(1, 3)])

    async def announce(self, places: Iterable[Place]) -> None:
        """AddPartitionsToTxn, which version 2 needs no more."""
        if self.version == 2:
            return
        by_topic: dict[str, list[int]] = {}
        for topic, partition in places:
            by_topic.setdefault(topic, []).append(partition)
        fields = {
            "v3_and_below_transactional_id": self.transactional_id,
            "v3_and_below_producer_id": self.producer_id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [
                {"name": name, "partitions": indexes} for name, indexes in by_topic.items()
            ],
        }
        await self.until_good(24, 3, fields, _first_partition_error)

    async def send(self, place: Place, values: list[str]) -> list[Send]:
        """Append one batch, again and again until that is certain. Raises `Broken`."""
        sequence = self.sequences.get(place, 0)
        batch = build(
            [(None, value) for value in values],
            timestamp_ms=self.timestamp_ms(),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        partition = {"index": place[1], "records": batch}
        fields = {
            "transactional_id": self.transactional_id,
            "acks": -1,
            "timeout": 3_000,
            "topic_data": [{"name": place[0], "partition_data": [partition]}],
        }
        version = 12 if self.version == 2 else 11
        reply = await self.until_good(0, version, fields, _produce_error)
        self.sequences[place] = sequence + len(values)
        base = reply.responses[0].partition_responses[0].base_offset
        return [Send(*place, value, None, base + index) for index, value in enumerate(values)]

    async def until_good(self, key: int, version: int, fields: dict[str, Any], error: Any) -> Any:
        """Until it is done. Raises `Broken` where this producer will never be heard again."""
        for _ in range(30):
            try:
                reply = await self.call(key, version, fields)
            except Refused:
                await self.rest(0.2)
                continue
            except Lost:
                if self.version == 1:
                    raise Broken from None
                await self.rest(0.2)
                continue
            code = error(reply)
            if code is ErrorCode.NONE:
                return reply
            if code not in RETRIABLE:
                raise Broken
            self.may_move()
            await self.rest(0.3)
        raise Broken

    async def end(self, steps: list[Send | Poll], *, committed: bool) -> None:
        """EndTxn, until its outcome is known or cannot be known any more."""
        fields = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "committed": committed,
        }
        may_have_arrived = False
        while True:
            try:
                reply = await self.call(26, 5 if self.version == 2 else 3, fields)
            except Lost:
                may_have_arrived = True
                if self.version == 1:
                    self.tell("info" if committed else "fail", steps)
                    raise Broken from None
                await self.rest(0.3)
                continue
            except Refused:
                await self.rest(0.3)
                continue
            error = ErrorCode(reply.error_code.value)
            if error is ErrorCode.NONE:
                break
            if error not in RETRIABLE:
                self.tell("info" if committed and may_have_arrived else "fail", steps)
                raise Broken
            # A coordinator that is not sure may have stored the decision and failed after.
            may_have_arrived = True
            self.may_move()
            await self.rest(0.3)
        self.tell("ok" if committed else "fail", steps)
        if self.version == 2:
            self.sequences = {}
            self.producer_id, self.epoch = reply.producer_id, reply.producer_epoch

    def tell(self, outcome: Type, steps: list[Send | Poll]) -> None:
        self.world.record(TxnLine(process=self.process, type=outcome, steps=list(steps)))


class Copier(TxnProducer):
    """Copies committed records of one partition to another, and its position, in one commit."""

    def __init__(
        self,
        world: Surroundings,
        process: int,
        seed: int,
        source: Place,
        target: Place,
        *,
        version: int,
    ) -> None:
        super().__init__(world, process, seed, [target], version=version)
        self.source = source
        self.target = target
        self.group = f"copier-{process}"
        self.position = 0

    async def initialise(self) -> None:
        """Also go back to where the last committed transaction has read to."""
        await super().initialise()
        self.position = max(0, await committed_offset(self, self.group, self.source))

    async def fill(self, steps: list[Send | Poll]) -> None:
        """Read some records, write their copies, and say how far it has read."""
        fetched = await self.fetch(self.source, self.position, read_committed=True)
        if fetched is None or fetched.error is not ErrorCode.NONE:
            self.may_move()
            raise Broken
        records, position = visible(fetched, self.position, committed_only=True)
        steps.append(Poll(*self.source, [(each.offset, each.value) for each in records]))
        await self.announce([self.target])
        if records:
            # An aborted copy lies in the log, too, so every attempt has values of its own.
            self.sent += 1
            copies = [f"{each.value} copied {self.sent}" for each in records]
            steps += await self.send(self.target, copies)
        await self.commit_position(position)
        self.reached = position

    async def end(self, steps: list[Send | Poll], *, committed: bool) -> None:
        await super().end(steps, committed=committed)
        if committed:
            self.position = self.reached

    async def commit_position(self, position: int) -> None:
        who = {
            "transactional_id": self.transactional_id,
            "producer_id": self.producer_id,
            "producer_epoch": self.epoch,
            "group_id": self.group,
        }
        if self.version == 1:
            await self.until_good(25, 3, who, _plain_error)
        partition = {
            "partition_index": self.source[1],
            "committed_offset": position,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        member = {"generation_id": -1, "member_id": "", "group_instance_id": None}
        topics = [{"name": self.source[0], "partitions": [partition]}]
        version = 5 if self.version == 2 else 3
        fields = {**who, **member, "topics": topics}
        await self.until_good(28, version, fields, _offset_error)


async def committed_offset(client: Client, group: str, place: Place) -> int:
    """A group's position, once it is certain; -1 for none."""
    fields = {
        "group_id": group,
        "topics": [{"name": place[0], "partition_indexes": [place[1]]}],
        "require_stable": True,
    }
    while True:
        reply = await client.insist(9, 7, fields)
        if reply.error_code.value == 0:
            (answer,) = reply.topics[0].partitions
            if answer.error_code.value == 0:
                return int(answer.committed_offset)
        client.may_move()
        await client.rest(0.3)


def _produce_error(reply: Any) -> ErrorCode:
    return ErrorCode(reply.responses[0].partition_responses[0].error_code.value)


def _first_partition_error(reply: Any) -> ErrorCode:
    codes = [
        ErrorCode(partition.partition_error_code.value)
        for topic in reply.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    ]
    return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)


def _offset_error(reply: Any) -> ErrorCode:
    return ErrorCode(reply.topics[0].partitions[0].error_code.value)


def _plain_error(reply: Any) -> ErrorCode:
    return ErrorCode(reply.error_code.value)
