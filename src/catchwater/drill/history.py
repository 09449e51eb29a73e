"""The history of a run: what its clients asked and what they were answered, one JSON object a line.

Lines stand in the order in which things happened. An operation begins with a line of type
`invoke` and ends with `ok` (it happened), `fail` (it definitely did not) or `info` (nobody knows:
a timeout, a lost reply, a client that died). A `process` is one client with one thing in its hand
at a time, but for sends, of which it may have many under way. The schema is docs/testing.md.

Promises that what it yields fits the schema; a line that does not is refused by its number. It
does not judge what the lines say together: that is `check`.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from catchwater.config import CatchwaterError

Value = int | str | None
"""What a record holds, and no other record of its partition; None is a tombstone."""
Type = Literal["invoke", "ok", "fail", "info"]


class HistoryUnusable(CatchwaterError):
    """A file that cannot be read as a history; names the line."""

    exit_code = 2


class Send(msgspec.Struct, tag_field="do", tag="send", gc=False, omit_defaults=True):
    """A record sent; the offset is known once it was acknowledged."""

    topic: str
    partition: int
    value: Value
    key: str | None = None
    offset: int | None = None


class Poll(msgspec.Struct, tag_field="do", tag="poll", gc=False, omit_defaults=True):
    """Records of one partition as one poll returned them, (offset, value) each."""

    topic: str
    partition: int
    records: list[tuple[int, Value]] = []
    high_watermark: int | None = None
    committed: bool = True
    """Read at isolation level read_committed."""
    final: bool = False
    """After everything was healed and sent: part of a reading from the beginning to the end."""


class Operation(msgspec.Struct, tag_field="do", kw_only=True, gc=False, omit_defaults=True):
    """What a line says; `time` is milliseconds, for people: lines are in order."""

    process: int
    type: Type
    time: int | None = None


class SendLine(Send, tag_field="do", tag="send", kw_only=True, gc=False, omit_defaults=True):
    """One record sent outside of a transaction."""

    process: int
    type: Type
    time: int | None = None


class PollLine(Poll, tag_field="do", tag="poll", kw_only=True, gc=False, omit_defaults=True):
    """One poll outside of a transaction."""

    process: int
    type: Type
    time: int | None = None


class TxnLine(Operation, tag="txn", kw_only=True, omit_defaults=True):
    """A transaction: `ok` committed, `fail` aborted, `info` one of the two."""

    steps: list[Send | Poll] = []


class AssignLine(Operation, tag="assign", kw_only=True, gc=False, omit_defaults=True):
    """The consumer chose where to read from; its next polls follow from nothing."""


class RebalanceLine(Operation, tag="rebalance", kw_only=True, gc=False, omit_defaults=True):
    """The consumer's group gave it other partitions; a jump across it is allowed."""


class WatermarkLine(Operation, tag="watermark", kw_only=True, gc=False, omit_defaults=True):
    """The end of a partition was asked for (ListOffsets, latest, read_uncommitted)."""

    topic: str
    partition: int
    offset: int | None = None


class TrimLine(Operation, tag="trim", kw_only=True, gc=False, omit_defaults=True):
    """Retention or DeleteRecords was seen to have moved the partition's start to `offset`."""

    topic: str
    partition: int
    offset: int


class TopicLine(Operation, tag="topic", kw_only=True, gc=False, omit_defaults=True):
    """What is to be known of a topic: a compacted one owes only the last value of each key."""

    topic: str
    compacted: bool = False


class LedgerLine(Operation, tag="ledger", kw_only=True, gc=False, omit_defaults=True):
    """What one part (state, offsets, sink) says of an epoch; all parts must say the same."""

    name: str
    epoch: int
    part: str
    says: int | str


Line = (
    SendLine
    | PollLine
    | TxnLine
    | AssignLine
    | RebalanceLine
    | WatermarkLine
    | TrimLine
    | TopicLine
    | LedgerLine
)

_DECODER = msgspec.json.Decoder(Line)
_ENCODER = msgspec.json.Encoder()


def write_line(line: Line) -> bytes:
    """The line as it stands in a file, its line feed included; equal lines are equal bytes."""
    return _ENCODER.encode(line) + b"\n"


def read_lines(lines: Iterable[bytes], source: str) -> Iterator[Line]:
    """The operations of these lines, in order; `source` names them in errors.

    Raises `HistoryUnusable` at the first line that does not fit the schema.
    """
    decode = _DECODER.decode
    for number, text in enumerate(lines, start=1):
        try:
            yield decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as problem:
            raise HistoryUnusable(
                f"{source}, line {number} is no operation of a history: {problem}.",
                hint="Each line is one JSON object; see docs/testing.md.",
            ) from problem


def read_history(path: Path) -> Iterator[Line]:
    """The operations of a file. Raises `HistoryUnusable`."""
    try:
        with path.open("rb") as file:
            yield from read_lines(file, str(path))
    except OSError as problem:
        raise HistoryUnusable(
            f"The history {path} cannot be read: {problem.strerror}.",
            hint="Name a file of JSON lines.",
        ) from problem
