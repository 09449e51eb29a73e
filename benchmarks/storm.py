"""A rebalance storm: MEMBERS members come and go about once a second, for STORM_S seconds.

One in ten is cut off without a word, one in twenty sleeps through its session. Meanwhile everybody
commits, and a watcher reads all positions. The verdict: nothing acknowledged is lost, no position
moves back, no generation gives a partition to two members, nobody commits after a later owner has,
and within 30 s of the storm's end every partition has one owner that commits.

    make storm STORM_S=60 MEMBERS=50
"""

import asyncio
import json
import os
import random
import sys
import time
from dataclasses import asdict, dataclass
from datetime import timedelta

from kio.schema.create_topics.v7 import request as create_v7
from kio.static.primitive import i32Timedelta

from benchmarks.measure import RESULTS, machine
from benchmarks.our_broker import catchwater_broker
from benchmarks.storm_members import MEMBERS, TOPIC, Member, Record, Wire, positions

PARTITIONS = 100
STABLE_S = 30.0
LEFT = 20
"""Members that stay when the storm is over."""
SETTINGS = {
    "group_min_session_timeout_ms": "1000",
    "group_consumer_session_timeout_ms": "1000",
    "group_consumer_heartbeat_interval_ms": "100",
}


@dataclass
class Verdict:
    """What a storm came to."""

    protocol: str
    members: int
    seconds: float
    lives: int
    cut_off: int
    joins: int
    commits: int
    refused_commits: int
    stable_s: float | None
    wrong: list[str]

    @property
    def is_good(self) -> bool:
        is_stable = self.stable_s is not None and self.stable_s <= STABLE_S
        return is_stable and not self.wrong and self.commits > 0


class Storm:
    """One storm against one broker."""

    def __init__(self, bootstrap: str, protocol: str, members: int, seed: int) -> None:
        self.bootstrap, self.protocol, self.members = bootstrap, protocol, members
        self.random = random.Random(seed)
        self.record = Record()
        self.lives = self.cut_off = 0
        self.alive: dict[str, Member] = {}

    async def run(self, seconds: float) -> Verdict:
        """The storm, the calm, the verdict."""
        async with Wire(self.bootstrap) as wire:
            topic = create_v7.CreatableTopic(
                name=TOPIC,
                num_partitions=PARTITIONS,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            timeout = i32Timedelta.parse(timedelta(seconds=10))
            await wire.ask(
                create_v7.CreateTopicsRequest(topics=(topic,), timeout=timeout, validate_only=False)
            )
            end_s = time.monotonic() + seconds
            watching = asyncio.ensure_future(self._watch())
            slots = [
                asyncio.ensure_future(self._slot(number, end_s)) for number in range(self.members)
            ]
            try:
                await asyncio.sleep(seconds)
                stable_s = await self._calm(end_s)
            finally:
                for task in (watching, *slots):
                    task.cancel()
                await asyncio.gather(watching, *slots, return_exceptions=True)
            await self._compare(wire)
        return Verdict(
            self.protocol,
            self.members,
            seconds,
            self.lives,
            self.cut_off,
            self.record.joins,
            self.record.commits,
            self.record.refused,
            stable_s,
            self.record.wrong,
        )

    async def _slot(self, number: int, end_s: float) -> None:
        """One life after the other; of the last some stay."""
        while time.monotonic() < end_s:
            await asyncio.sleep(self.random.uniform(0.0, 0.5))
            sleeps = self.random.random() < 0.05
            await self._life(f"{number}", 3.0 if sleeps else self.random.uniform(0.3, 1.0), sleeps)
        if number < LEFT:
            await self._life(f"{number}", 10 * STABLE_S)

    async def _life(self, name: str, seconds: float, sleeps: bool = False) -> None:
        self.lives += 1
        async with Wire(self.bootstrap) as wire:
            member = MEMBERS[self.protocol](wire, name, self.record, PARTITIONS)
            member.falls_asleep = sleeps
            self.alive[name] = member
            try:
                async with asyncio.timeout(seconds):
                    await member.live()
            except TimeoutError:
                if self.random.random() < 0.1:
                    self.cut_off += 1
                else:
                    # The answer to what it was in the middle of is still to come on the first.
                    async with Wire(self.bootstrap) as member.wire:
                        await member.leave()
            finally:
                del self.alive[name]

    async def _watch(self) -> None:
        """No position moves back, whoever looks."""
        before: dict[int, int] = {}
        async with Wire(self.bootstrap) as wire:
            while True:
                floors = dict(self.record.acked)
                now = await positions(wire, list(range(PARTITIONS)))
                for partition, offset in now.items():
                    floor = max(before.get(partition, -1), floors.get(partition, -1))
                    if offset < floor:
                        self.record.wrong.append(f"{partition} moved back, {floor} to {offset}")
                before = now
                await asyncio.sleep(0.05)

    async def _calm(self, end_s: float) -> float | None:
        """Seconds until each partition has one member that has it for a second and commits."""
        since_s = None
        seen: dict[str, dict[int, int]] = {}
        while (now_s := time.monotonic()) < end_s + STABLE_S:
            await asyncio.sleep(0.05)
            held = {name: dict(member.taken) for name, member in self.alive.items()}
            every = sorted(p for taken in held.values() for p in taken)
            if every != list(range(PARTITIONS)) or held != seen:
                since_s, seen, commits = now_s, held, self.record.commits
            elif since_s is not None and now_s - since_s >= 1.0 and self.record.commits > commits:
                return round(since_s - end_s, 2)
        return None

    async def _compare(self, wire: Wire) -> None:
        """In the end every position is at least what was acknowledged."""
        for partition, offset in (await positions(wire, list(range(PARTITIONS)))).items():
            if offset < self.record.acked.get(partition, -1):
                self.record.wrong.append(f"{partition} ends at {offset}: a commit is lost")


def main() -> None:
    """Both protocols, one after the other, each on a broker of its own."""
    seconds, members = float(os.environ.get("STORM_S", "60")), int(os.environ.get("MEMBERS", "50"))
    verdicts = []
    for protocol in MEMBERS:
        with catchwater_broker(**SETTINGS) as broker:
            verdict = asyncio.run(Storm(broker.bootstrap, protocol, members, 1).run(seconds))
        print(json.dumps(asdict(verdict)))
        verdicts.append(verdict)
    found = {"machine": machine(), "storms": [asdict(each) for each in verdicts]}
    (RESULTS / "storm.json").write_text(json.dumps(found, indent=1) + "\n")
    if not all(verdict.is_good for verdict in verdicts):
        sys.exit("verdict: the groups did not come through")


if __name__ == "__main__":
    main()
