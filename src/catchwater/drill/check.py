"""A history to findings: every anomaly of the log, by its class.

Pure: operations in, a report out. Classes and verdicts follow the Kafka workload of Jepsen
(docs/testing.md explains each), with two of our own: a watermark that goes back, and a
contract whose parts disagree. An operation that ended in `info`, or never, may have happened or
not: it is held to nothing, until somebody has seen it happen.

Promises that a class that is never allowed and was counted makes the verdict `fail`, and that
nothing is `pass` where records were sent and no final polls tell whether they can be read.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from catchwater.drill.cycles import cycles
from catchwater.drill.history import (
    AssignLine,
    LedgerLine,
    Line,
    Poll,
    PollLine,
    RebalanceLine,
    Send,
    SendLine,
    TopicLine,
    TrimLine,
    TxnLine,
    Type,
    Value,
    WatermarkLine,
)
from catchwater.drill.partition import NO_TXN, Gap, Partition, Sent

NEVER = (
    "lost-write",
    "unseen",
    "duplicate",
    "inconsistent-offsets",
    "garbage",
    "G1a",
    "precommitted-read",
    "G1c",
    "poll-skip",
    "nonmonotonic-poll",
    "int-poll-skip",
    "int-nonmonotonic-poll",
    "nonmonotonic-send",
    "int-nonmonotonic-send",
    "hw-regression",
    "torn-contract",
)
"""One of these makes a history fail."""
ALLOWED = (
    "G0",
    "int-send-skip",
    "rebalance-poll-skip",
    "rebalance-nonmonotonic-poll",
    "poll-hw-regression",
    "poll-beyond-hw",
)
"""What Kafka allows: counted, never a failure."""
EXAMPLES = 3

Verdict = Literal["pass", "fail", "unknown"]
Place = tuple[str, int]
Reader = tuple[int, str, int]
"""A process on one partition."""


@dataclass(frozen=True, slots=True)
class Example:
    """One occurrence: what was seen, and the numbers of the history's lines that show it."""

    what: str
    lines: tuple[int, ...]


@dataclass(slots=True)
class Finding:
    """One class of anomalies: how often, and the first few."""

    anomaly: str
    allowed: bool
    count: int = 0
    examples: list[Example] = field(default_factory=list)

    @property
    def told(self) -> str:
        """The class, how often it was seen, and what was seen first."""
        return f"{self.anomaly} ({self.count}): {self.examples[0].what}"


@dataclass(frozen=True, slots=True)
class Report:
    """What a history came to."""

    operations: int
    """Lines of the history."""
    records: int
    """Records polled."""
    findings: list[Finding]
    """Every class, in the order of `NEVER` and `ALLOWED`."""
    unjudged: int
    """Partitions with records and no final polls: nobody knows what is unseen there."""

    @property
    def verdict(self) -> Verdict:
        """`fail`, or `pass`, or `unknown` where not everything could be judged."""
        if any(finding.count and not finding.allowed for finding in self.findings):
            return "fail"
        return "unknown" if self.unjudged else "pass"

    def counts(self) -> dict[str, int]:
        """The classes that were found, allowed ones too."""
        return {found.anomaly: found.count for found in self.findings if found.count}


@dataclass(slots=True)
class _Txn:
    """One transaction; `reads` are the values it polled, by partition."""

    line: int
    outcome: Type = "info"
    sends: list[tuple[Partition, Value]] = field(default_factory=list)
    reads: list[tuple[Partition, Value]] = field(default_factory=list)


def check(history: Iterable[Line]) -> Report:
    """Hold a history against what a log may do."""
    checker = _Checker()
    for number, line in enumerate(history, start=1):
        checker.take(number, line)
    return checker.report()


class _Checker:
    """Reads the lines once, and judges at the end."""

    def __init__(self) -> None:
        names = [(name, False) for name in NEVER] + [(name, True) for name in ALLOWED]
        self._findings = {name: Finding(name, allowed) for name, allowed in names}
        self._partitions: dict[Place, Partition] = {}
        self._compacted: set[str] = set()
        self._txns: list[_Txn] = []
        self._open: dict[int, int] = {}
        # Where a reader stands: the last offset it was given, and whether a rebalance came since.
        self._positions: dict[Reader, tuple[int, bool]] = {}
        self._heads: dict[Reader, int] = {}
        self._asked: dict[Reader, int] = {}
        self._ledger: dict[tuple[str, int], LedgerLine] = {}
        self._lines = self._records = 0
        self._takers: dict[type[Any], Any] = {
            SendLine: self._take_send,
            PollLine: self._take_poll,
            TxnLine: self._take_txn,
            WatermarkLine: self._take_watermark,
            AssignLine: self._take_assign,
            RebalanceLine: self._take_rebalance,
            TrimLine: self._take_trim,
            TopicLine: self._take_topic,
            LedgerLine: self._take_ledger,
        }

    def take(self, number: int, line: Line) -> None:
        self._lines = number
        self._takers[type(line)](number, line)

    def report(self) -> Report:
        self._settle_txns()
        for partition in self._partitions.values():
            partition.judge(self._report)
        self._judge_txns()
        unjudged = sum(1 for p in self._partitions.values() if p.sends and not p.final_line)
        return Report(self._lines, self._records, list(self._findings.values()), unjudged)

    def _report(self, anomaly: str, what: str, lines: tuple[int, ...]) -> None:
        finding = self._findings[anomaly]
        finding.count += 1
        if len(finding.examples) < EXAMPLES:
            finding.examples.append(Example(what, lines))

    def _partition(self, topic: str, index: int) -> Partition:
        partition = self._partitions.get((topic, index))
        if partition is None:
            partition = Partition(f"{topic}-{index}", is_compacted=topic in self._compacted)
            self._partitions[topic, index] = partition
        return partition

    # --- sends -----------------------------------------------------------------------------------

    def _take_send(self, number: int, line: SendLine) -> None:
        self._send(number, line, line.process, line.type, NO_TXN)

    def _send(self, number: int, send: Send, process: int, outcome: Type, txn: int) -> None:
        partition = self._partition(send.topic, send.partition)
        if send.value is None:
            if outcome in ("ok", "info"):
                partition.tombstones.append((send.key, send.offset))
            return
        sent = partition.sends.get(send.value)
        if sent is None:
            sent = partition.sends[send.value] = Sent(process, txn, send.key, number)
            if txn != NO_TXN:
                self._txns[txn].sends.append((partition, send.value))
        sent.line = number
        if outcome != "invoke":
            sent.outcome = outcome
        if send.offset is not None:
            sent.offset = send.offset
            partition.place(send.offset, send.value, number, self._report)
            partition.floor = max(partition.floor, send.offset + 1)

    # --- polls -----------------------------------------------------------------------------------

    def _take_poll(self, number: int, line: PollLine) -> None:
        if line.type == "ok":
            self._poll(number, line, line.process, "")

    def _poll(self, number: int, poll: Poll, process: int, inside: str) -> None:
        partition = self._partition(poll.topic, poll.partition)
        reader = (process, poll.topic, poll.partition)
        self._take_head(number, poll, partition, reader)
        if poll.final:
            partition.final_line = number
            partition.final.update(value for _, value in poll.records)
        if not poll.records:
            return
        last, rebalanced = self._positions.get(reader, (None, False))
        prefix = "rebalance-" if rebalanced else inside
        values, polled, read = partition.values, partition.polled, partition.read
        for offset, value in poll.records:
            if values.get(offset) != value or value is None:
                partition.place(offset, value, number, self._report)
            if last is not None and offset != last + 1:
                self._jump(number, partition, last, offset, prefix)
            prefix = inside
            last = offset
            if value is not None:
                polled.setdefault(value, number)
                if poll.committed:
                    read.setdefault(value, number)
        assert last is not None
        self._positions[reader] = (last, False)
        self._records += len(poll.records)
        partition.highest_read = max(partition.highest_read, last)
        partition.floor = max(partition.floor, last + 1)

    def _jump(self, number: int, partition: Partition, last: int, offset: int, prefix: str) -> None:
        if offset > last:
            partition.gaps.append(Gap(f"{prefix}poll-skip", number, last, offset))
        else:
            what = f"{partition.name}: {offset} was polled after {last}"
            self._report(f"{prefix}nonmonotonic-poll", what, (number,))

    def _take_head(self, number: int, poll: Poll, partition: Partition, reader: Reader) -> None:
        head = poll.high_watermark
        if head is None:
            return
        own, before = poll.records[-1][0] + 1 if poll.records else 0, self._heads.get(reader, 0)
        if head < max(own, before):
            what = f"{partition.name}: a poll gave the watermark {head} after {max(own, before)}"
            self._report("poll-beyond-hw" if head < own else "poll-hw-regression", what, (number,))
        self._heads[reader] = head
        partition.floor = max(partition.floor, head)

    def _take_watermark(self, number: int, line: WatermarkLine) -> None:
        """What was true before somebody asked is the least that may be answered."""
        partition = self._partition(line.topic, line.partition)
        reader = (line.process, line.topic, line.partition)
        if line.type == "invoke":
            self._asked[reader] = partition.floor
        elif line.type == "ok" and line.offset is not None:
            least = self._asked.pop(reader, self._heads.get(reader, 0))
            if line.offset < least:
                what = f"{partition.name}: the watermark was given as {line.offset} after {least}"
                self._report("hw-regression", what, (number,))
            self._heads[reader] = line.offset
            partition.floor = max(partition.floor, line.offset)

    def _take_assign(self, number: int, line: AssignLine) -> None:
        for reader in [reader for reader in self._positions if reader[0] == line.process]:
            del self._positions[reader]

    def _take_rebalance(self, number: int, line: RebalanceLine) -> None:
        for reader, (last, _) in self._positions.items():
            if reader[0] == line.process:
                self._positions[reader] = (last, True)

    # --- the rest --------------------------------------------------------------------------------

    def _take_trim(self, number: int, line: TrimLine) -> None:
        partition = self._partition(line.topic, line.partition)
        if line.type == "ok":
            partition.trimmed = max(partition.trimmed, line.offset)

    def _take_topic(self, number: int, line: TopicLine) -> None:
        if line.compacted:
            self._compacted.add(line.topic)

    def _take_ledger(self, number: int, line: LedgerLine) -> None:
        first = self._ledger.setdefault((line.name, line.epoch), line)
        if first.says != line.says:
            what = f"{line.name}, epoch {line.epoch}: {first.part} says {first.says!r}"
            self._report("torn-contract", f"{what}, {line.part} says {line.says!r}", (number,))

    # --- transactions ----------------------------------------------------------------------------

    def _take_txn(self, number: int, line: TxnLine) -> None:
        index = self._open.pop(line.process, len(self._txns))
        if index == len(self._txns):
            self._txns.append(_Txn(number))
        txn = self._txns[index]
        if line.type == "invoke":
            self._open[line.process] = index
        else:
            txn.line, txn.outcome = number, line.type
        before = dict(self._positions)
        within: set[Place] = set()
        for step in line.steps:
            if isinstance(step, Send):
                self._send(number, step, line.process, line.type, index)
            elif line.type != "invoke":
                place = (step.topic, step.partition)
                self._poll(number, step, line.process, "int-" if place in within else "")
                if step.records:
                    within.add(place)
                partition = self._partitions[place]
                txn.reads += [(partition, value) for _, value in step.records]
        if line.type in ("fail", "info"):
            # Its reader goes back to where it stood, or stands where nobody knows.
            for place in within:
                reader = (line.process, *place)
                del self._positions[reader]
                if line.type == "fail" and reader in before:
                    self._positions[reader] = before[reader]

    def _settle_txns(self) -> None:
        """One value that was read tells that its whole transaction was committed."""
        for txn in self._txns:
            if txn.outcome == "info" and any(value in p.read for p, value in txn.sends):
                txn.outcome = "ok"
                for partition, value in txn.sends:
                    partition.sends[value].outcome = "ok"

    def _judge_txns(self) -> None:
        for name, graph in (("G1c", self._reads_from()), ("G0", self._writes_after())):
            for group in cycles(graph):
                lines = tuple(self._txns[index].line for index in group)
                self._report(name, f"{len(group)} transactions in a circle", lines)

    def _reads_from(self) -> dict[int, set[int]]:
        """Writer -> readers, by transactions that were not aborted."""
        graph: dict[int, set[int]] = defaultdict(set)
        for reader, txn in enumerate(self._txns):
            for partition, value in txn.reads:
                sent = partition.sends.get(value)
                if sent is None or sent.txn == NO_TXN:
                    continue
                if sent.txn == reader:
                    what = f"{partition.name}: {value!r} was polled before its own commit"
                    self._report("precommitted-read", what, (txn.line,))
                elif txn.outcome == "ok":
                    graph[sent.txn].add(reader)
        return dict(graph)

    def _writes_after(self) -> dict[int, set[int]]:
        """Transaction -> those whose writes come next in some partition."""
        graph: dict[int, set[int]] = defaultdict(set)
        for partition in self._partitions.values():
            places = sorted(
                (sent.offset, sent.txn)
                for sent in partition.sends.values()
                if sent.txn != NO_TXN and sent.offset is not None and sent.outcome == "ok"
            )
            seen: set[int] = set()
            for (_, before), (offset, after) in pairwise(places):
                seen.add(before)
                if before != after:
                    graph[before].add(after)
                    if after in seen:
                        what = f"{partition.name}: others wrote before offset {offset}"
                        self._report("int-send-skip", what, (self._txns[after].line,))
        return dict(graph)
