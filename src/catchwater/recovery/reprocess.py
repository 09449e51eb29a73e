"""Dead letters once more: each goes back to the partition it came from, once.

What functions could not handle lies in a topic, with where it came from in its headers. After a fix
the records are appended to their topic again, under the same key and in the same partition, and the
pipeline reads them as it reads all else. Their order is another one: they come behind what has come
since. Letters of functions behind the first of a chain were never in a topic, and those that a
rollback has retracted are none any more: neither is sent.

Each is sent once, however often the command is cut short: before anything is sent, a file beside
the checkpoint says which letters are about to be and where the topics ended; each record carries a
header that names its letter, so what a process that died had sent is found behind those ends.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.recovery.contract import HistoryGone
from catchwater.recovery.ledger import FOLDER, OffsetMap, read_json, write_whole
from catchwater.wire.arrow import AbortedTransaction, Record, decode, encode_batch, place
from catchwater.wire.client import EARLIEST, LATEST, Client
from catchwater.wire.fields import TopicPartition

REPROCESSED_HEADER = "catchwater-reprocessed"
"""`<topic>/<partition>/<offset>` of the dead letter that a record was made from."""
_RETRACTS = "catchwater-retracts"
_RETRACTS_OFFSET = "catchwater-retracts-offset"
_LATE = "it is late"
_TOGETHER = 500
"""Records of a request."""


class Letter(NamedTuple):
    """One dead letter."""

    partition: int
    """Of the dead letters' topic."""
    offset: int
    key: bytes
    value: bytes
    origin: TopicPartition | None
    """Where it came from; None: from a function before its own."""
    error: str


class _UnderWay(msgspec.Struct, frozen=True):
    """What is being sent, or was when the process died."""

    until: dict[str, int]
    """Partition of the dead letters → the first letter that is not."""
    ends: OffsetMap
    """Where the topics ended before."""


class _Sent(msgspec.Struct, frozen=True):
    """`reprocessed.json`."""

    positions: dict[str, int] = {}
    """Partition → the first letter that was not sent."""
    under_way: _UnderWay | None = None


@dataclass
class Letters:
    """What there is to be sent again."""

    letters: list[Letter]
    until: dict[str, int]
    skipped: Counter[str] = field(default_factory=Counter)
    """Why some are not sent → how many."""

    @property
    def by_topic(self) -> Counter[str]:
        """How many go where."""
        return Counter(each.origin[0] for each in self.letters if each.origin)

    @property
    def by_error(self) -> Counter[str]:
        """How many there are of each error."""
        return Counter(each.error for each in self.letters)


class Reprocessing:
    """The dead letters of one pipeline, on the log that its input comes from."""

    def __init__(
        self, client: Client, folder: Path, topic: str, inputs: Iterable[str], clock: Clock = SYSTEM
    ) -> None:
        self._client = client
        self._clock = clock
        self._file = folder / FOLDER / "reprocessed.json"
        self._topic = topic
        self._inputs = {*inputs}

    def find(self, *, skip_gone: bool = False) -> Letters:
        """The letters not sent before. Raises `HistoryGone` where the log has deleted some.

        Those that a process died over are among them if it had not sent them.
        """
        sent = self._sent()
        numbers = self._client.metadata([self._topic]).partitions(self._topic)
        keys = [(self._topic, number) for number in numbers]
        starts = self._client.list_offsets(dict.fromkeys(keys, EARLIEST))
        # A letter of a transaction that is open is not there yet: the next time it is sent.
        ends = self._client.list_offsets(dict.fromkeys(keys, LATEST), read_committed=True)
        first = {key: sent.positions.get(str(key[1]), 0) for key in keys}
        gone = {key: (at, starts[key]) for key, at in first.items() if at < starts[key]}
        if gone and not skip_gone:
            named = ", ".join(
                f"{topic}-{number} offsets {at} to {start}"
                for (topic, number), (at, start) in sorted(gone.items())
            )
            raise HistoryGone(
                f"The log has deleted dead letters that were not sent again: {named}.",
                hint="Send the others: --skip-gone. The records themselves may still be in their "
                "topics: catchwater pipeline backfill.",
            )
        begin = {key: max(at, starts[key]) for key, at in first.items()}
        letters, skipped = self._read(begin, ends)
        if sent.under_way is not None:
            there = self._already(sent.under_way)
            already = [each for each in letters if self._name(each) in there]
            skipped["sent before a process was cut short"] += len(already)
            letters = [each for each in letters if self._name(each) not in there]
        until = {str(number): end for (_, number), end in ends.items()}
        return Letters(letters, until, +skipped)

    def send(self, found: Letters) -> int:
        """Append them to where they came from, each once; how many that was."""
        targets = sorted({each.origin for each in found.letters if each.origin})
        before = self._sent()
        ends: OffsetMap = {}
        for (topic, number), end in self._ends(targets).items():
            ends.setdefault(topic, {})[str(number)] = end
        if before.under_way is not None:  # what is there from before is looked for there
            for topic, partitions in before.under_way.ends.items():
                ends.setdefault(topic, {}).update(partitions)
        self._keep(msgspec.structs.replace(before, under_way=_UnderWay(found.until, ends)))
        producer = self._client.init_producer_id()
        for target in targets:
            of = [each for each in found.letters if each.origin == target]
            for at in range(0, len(of), _TOGETHER):
                records = [self._record(each) for each in of[at : at + _TOGETHER]]
                batch = encode_batch(
                    records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=at
                )
                self._client.produce([(target, batch)])
        self._keep(_Sent(found.until))
        return len(found.letters)

    def _record(self, letter: Letter) -> Record:
        name = (REPROCESSED_HEADER, self._name(letter).encode())
        return letter.key, letter.value, self._clock.now_ms(), (name,)

    def _name(self, letter: Letter) -> str:
        return f"{self._topic}/{letter.partition}/{letter.offset}"

    def _read(
        self, begin: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> tuple[list[Letter], Counter[str]]:
        letters: list[Letter] = []
        skipped, retracted = Counter[str](), set[tuple[int, int]]()
        for key, first in begin.items():
            for offset, headers, row_key, value in _records(self._client, key, first, ends[key]):
                if _RETRACTS in headers:
                    if at := headers.get(_RETRACTS_OFFSET):
                        retracted.add((key[1], int(at)))
                    continue
                letters.append(_letter(key[1], offset, headers, row_key, value, self._inputs))
        left: list[Letter] = []
        for each in letters:
            if (each.partition, each.offset) in retracted:
                skipped["retracted by a rollback"] += 1
            elif each.origin is None:
                skipped["not from an input of this pipeline"] += 1
            elif each.error.startswith(_LATE):
                skipped["late, and would be again"] += 1
            else:
                left.append(each)
        return left, skipped

    def _already(self, under_way: _UnderWay) -> set[str]:
        """The letters whose records lie behind those ends."""
        found = set()
        keys = {
            (topic, int(number)): at
            for topic, partitions in under_way.ends.items()
            for number, at in partitions.items()
        }
        ends = self._ends(sorted(keys))
        for key, first in keys.items():
            for _, headers, _, _ in _records(self._client, key, first, ends[key]):
                if name := headers.get(REPROCESSED_HEADER):
                    found.add(name.decode())
        return found

    def _ends(self, keys: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return self._client.list_offsets(dict.fromkeys(keys, LATEST)) if keys else {}

    def _sent(self) -> _Sent:
        return read_json(self._file, _Sent) or _Sent()

    def _keep(self, sent: _Sent) -> None:
        write_whole(self._file, msgspec.json.encode(sent))


class NoDeadLetters(CatchwaterError):
    """The pipeline has no topic of dead letters at the brokers that its input comes from."""

    exit_code = 2


def _letter(
    partition: int,
    offset: int,
    headers: Mapping[str, bytes],
    key: bytes,
    value: bytes,
    inputs: set[str],
) -> Letter:
    known = {name: headers.get(name, b"").decode(errors="replace") for name in _TOLD}
    origin = None
    if known["topic"] in inputs and known["partition"].isdigit():
        origin = known["topic"], int(known["partition"])
    return Letter(partition, offset, key, value, origin, known["error"])


_TOLD = ("topic", "partition", "error")


def _records(
    client: Client, key: TopicPartition, first: int, end: int
) -> Iterator[tuple[int, dict[str, bytes], bytes, bytes]]:
    """Offset, headers, key and value of what a partition holds from one offset to another."""
    at, columns = first, ["offset", "headers", "key", "value"]
    while at < end:
        fetched = client.fetch({key: at}, read_committed=True)[key]
        batches = place(fetched.records, partial_tail=True)
        if not batches:
            return  # an open transaction ends what can be read
        aborted = [AbortedTransaction(*each) for each in fetched.aborted]
        for table in decode(fetched.records, batches, first=at, columns=columns, aborted=aborted):
            for row in table.to_pylist():
                if row["offset"] < end:
                    headers = {each["key"]: each["value"] or b"" for each in row["headers"] or ()}
                    yield row["offset"], headers, row["key"] or b"", row["value"] or b""
        at = batches[-1].next_offset
