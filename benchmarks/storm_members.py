"""Members of a rebalance storm: raw clients of both protocols, one connection and one task each.

A member joins, reads the positions of what it is given, and then commits the next offset of each
again and again, as a consumer does that reads a record at a time, until it leaves or is cut off.
Some fall asleep for longer than their session and go on with what is not theirs any more.
"""

import asyncio
import struct
import uuid
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from kio.schema.consumer_group_heartbeat.v1 import request as beat_v1
from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.join_group.v3 import request as join_v3
from kio.schema.leave_group.v2.request import LeaveGroupRequest
from kio.schema.offset_commit.v9 import request as commit_v9
from kio.schema.offset_fetch.v8 import request as fetch_v8
from kio.schema.sync_group.v3 import request as sync_v3
from kio.static.primitive import i32Timedelta

from catchwater.wire.messages import decode_reply, encode_request

GROUP, TOPIC = "storm", "storm"
BEAT_S = 0.1
SLEEP_S = 1.6
"""Longer than a session."""
SESSION = i32Timedelta.parse(timedelta(seconds=1))
REBALANCE = i32Timedelta.parse(timedelta(seconds=2))


class Wire:
    """One connection, one request at a time."""

    def __init__(self, bootstrap: str) -> None:
        self._place = bootstrap.rsplit(":", 1)

    async def __aenter__(self) -> "Wire":
        host, port = self._place
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    async def ask(self, message: Any) -> Any:
        data = b"".join(encode_request(1, "storm", message))
        self._writer.write(struct.pack(">i", len(data)) + data)
        (size,) = struct.unpack(">i", await self._reader.readexactly(4))
        reply = await self._reader.readexactly(size)
        return decode_reply(message.__api_key__, message.__version__, memoryview(reply))[1]


@dataclass
class Record:
    """What members saw, and what in it cannot be."""

    acked: dict[int, int] = field(default_factory=dict)
    """The highest offset that was acknowledged, by partition."""
    owners: dict[tuple[int, int], str] = field(default_factory=dict)
    """Who was given a partition, by (generation, partition)."""
    newest: dict[int, int] = field(default_factory=dict)
    """The newest taking of a partition from which something was committed."""
    takings: int = 0
    commits: int = 0
    refused: int = 0
    joins: int = 0
    wrong: list[str] = field(default_factory=list)

    def given(self, member: str, generation: int, partitions: list[int]) -> None:
        """A member of the classic protocol was given these."""
        for partition in partitions:
            owner = self.owners.setdefault((generation, partition), member)
            if owner != member:
                self.wrong.append(f"{partition} is {owner}'s and {member}'s in {generation}")


class Member(ABC):
    """What both protocols have in common: positions, and a life that can be cut off."""

    def __init__(self, wire: Wire, name: str, record: Record, partitions: int) -> None:
        self.wire, self.name, self.record = wire, name, record
        self.partitions = partitions
        self.id, self.epoch = "", 0
        self.at: dict[int, int] = {}
        self.taken: dict[int, int] = {}
        self.falls_asleep = False

    @abstractmethod
    async def live(self) -> None:
        """Take part until cancelled."""

    @abstractmethod
    async def leave(self) -> None:
        """Say that it goes."""

    async def take(self, partitions: list[int]) -> None:
        """Read where to go on; nothing that was acknowledged may be missing."""
        if not partitions:
            return
        floors = {p: self.record.acked.get(p, -1) for p in partitions}
        found = await positions(self.wire, partitions)
        for partition, offset in found.items():
            if offset < floors[partition]:
                lost = f"{partition} is at {offset}, {floors[partition]} was acknowledged"
                self.record.wrong.append(lost)
            self.record.takings += 1
            self.at[partition], self.taken[partition] = max(offset, 0), self.record.takings

    def drop(self, partitions: set[int]) -> None:
        for partition in partitions:
            self.at.pop(partition, None)
            self.taken.pop(partition, None)

    async def work(self) -> None:
        """Commit until the next heartbeat; who falls asleep is taken for gone, and commits then."""
        await self.commit()
        await asyncio.sleep(BEAT_S / 2)
        if self.at and self.falls_asleep:
            self.falls_asleep = False
            await asyncio.sleep(SLEEP_S)
        await self.commit()
        await asyncio.sleep(BEAT_S / 2)

    async def commit(self) -> None:
        """The next offset of everything it works on."""
        if not self.at:
            return
        wanted = {p: offset + 1 for p, offset in self.at.items()}
        floors = {p: self.record.newest.get(p, 0) for p in wanted}
        topic = commit_v9.OffsetCommitRequestTopic(
            name=TOPIC,
            partitions=tuple(
                commit_v9.OffsetCommitRequestPartition(
                    partition_index=p, committed_offset=offset, committed_metadata=""
                )
                for p, offset in wanted.items()
            ),
        )
        reply = await self.wire.ask(
            commit_v9.OffsetCommitRequest(
                group_id=GROUP,
                generation_id_or_member_epoch=self.epoch,
                member_id=self.id,
                topics=(topic,),
            )
        )
        for answer in reply.topics[0].partitions:
            partition = answer.partition_index
            if answer.error_code.value:
                self.record.refused += 1
                continue
            self.record.commits += 1
            if self.taken[partition] < floors[partition]:
                self.record.wrong.append(f"{partition}: {self.name} committed after its heir")
            self.record.newest[partition] = max(self.taken[partition], floors[partition])
            self.at[partition] = wanted[partition]
            self.record.acked[partition] = max(
                self.record.acked.get(partition, -1), wanted[partition]
            )


async def positions(wire: Wire, partitions: list[int]) -> dict[int, int]:
    """Where the group stands; -1 where it has committed nothing."""
    topic = fetch_v8.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=tuple(partitions))
    group = fetch_v8.OffsetFetchRequestGroup(group_id=GROUP, topics=(topic,))
    reply = await wire.ask(fetch_v8.OffsetFetchRequest(groups=(group,)))
    found = reply.groups[0].topics[0].partitions
    return {p.partition_index: p.committed_offset for p in found}


class ClassicMember(Member):
    """Eager: gives everything back before each generation."""

    async def live(self) -> None:
        while True:
            self.drop(set(self.at))
            protocol = join_v3.JoinGroupRequestProtocol(name="storm", metadata=b"")
            joined = await self.wire.ask(
                join_v3.JoinGroupRequest(
                    group_id=GROUP,
                    session_timeout=SESSION,
                    rebalance_timeout=REBALANCE,
                    member_id=self.id,
                    protocol_type="consumer",
                    protocols=(protocol,),
                )
            )
            self.record.joins += 1
            if joined.error_code.value:
                self.id = ""
                await asyncio.sleep(BEAT_S / 5)
                continue
            self.id, self.epoch = joined.member_id, joined.generation_id
            if await self._sync([m.member_id for m in joined.members]):
                await self._work()

    async def _sync(self, members: list[str]) -> bool:
        assignments = tuple(
            sync_v3.SyncGroupRequestAssignment(
                member_id=member,
                assignment=b",".join(
                    b"%d" % p for p in range(place, self.partitions, len(members))
                ),
            )
            for place, member in enumerate(members)
        )
        synced = await self.wire.ask(
            sync_v3.SyncGroupRequest(
                group_id=GROUP,
                generation_id=self.epoch,
                member_id=self.id,
                assignments=assignments,
            )
        )
        if synced.error_code.value:
            return False
        mine = [int(p) for p in synced.assignment.split(b",") if p]
        self.record.given(self.id, self.epoch, mine)
        await self.take(mine)
        return True

    async def _work(self) -> None:
        while True:
            await self.work()
            beat = HeartbeatRequest(group_id=GROUP, generation_id=self.epoch, member_id=self.id)
            error = (await self.wire.ask(beat)).error_code.name
            if error == "unknown_member_id":
                self.id = ""
            if error != "none":
                return

    async def leave(self) -> None:
        await self.wire.ask(LeaveGroupRequest(group_id=GROUP, member_id=self.id))


class ConsumerMember(Member):
    """Gives up what it is told to, says so, and takes what it is given."""

    async def live(self) -> None:
        self.id = str(uuid.uuid4())
        while True:
            reply = await self._beat()
            if reply.error_code.value:
                self.drop(set(self.at))
                self.epoch = 0
                await asyncio.sleep(BEAT_S / 5)
                continue
            self.record.joins += self.epoch == 0
            self.epoch = reply.member_epoch
            if reply.assignment is not None:
                topics = reply.assignment.topic_partitions
                told = {p for topic in topics for p in topic.partitions}
                self.topic_ids = [topic.topic_id for topic in topics]
                self.drop(self.at.keys() - told)
                await self.take(sorted(told - self.at.keys()))
            await self.work()

    async def _beat(self) -> Any:
        joins = self.epoch == 0
        owned = tuple(
            beat_v1.TopicPartitions(topic_id=topic_id, partitions=tuple(self.at))
            for topic_id in getattr(self, "topic_ids", ())
        )
        more = {"rebalance_timeout": REBALANCE, "subscribed_topic_names": (TOPIC,)}
        return await self.wire.ask(
            beat_v1.ConsumerGroupHeartbeatRequest(
                group_id=GROUP,
                member_id=self.id,
                member_epoch=self.epoch,
                topic_partitions=() if joins else owned,
                **(more if joins else {}),  # type: ignore[arg-type]
            )
        )

    async def leave(self) -> None:
        await self.wire.ask(
            beat_v1.ConsumerGroupHeartbeatRequest(
                group_id=GROUP, member_id=self.id, member_epoch=-1, topic_partitions=None
            )
        )


MEMBERS = {"classic": ClassicMember, "consumer": ConsumerMember}
