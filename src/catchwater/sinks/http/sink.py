"""Outputs as HTTP requests: a key-value store, a search index, any endpoint.

Every record is one `PUT` or `POST` with an `Idempotency-Key` that is the same whenever the epoch is
repeated. When all of an epoch were acknowledged, its mark is written beside the checkpoint. So this
sink is idempotent, not atomic: readers may see a part of an epoch before the rest. A refusal that
will not pass (4xx) names the record and fails the epoch at once.

Where the URL names the record, a later record of the same URL replaces it, one that retracts is a
`DELETE` (where the URL is made of the `output_id`), and the endpoint's GET is what `verify`
compares. Relies on that GET to give back what was put.
"""

import json
import string
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, ConfigError, Restart
from catchwater.objects.base import ObjectMissing
from catchwater.objects.open import place
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    Expected,
    Fix,
    OutputRecord,
    RowId,
    RowsUnreadable,
    SinkRow,
    Staged,
)
from catchwater.sinks.config import SinkConfig
from catchwater.sinks.http.endpoint import Answer, Endpoint, Request
from catchwater.sinks.marks import Mark, Marks, decode_marks
from catchwater.sinks.relational.columns import Column, digest_of
from catchwater.sinks.staged import Archive, StagedFile

T = TypeVar("T")

_AT_ONCE = 10_000
"""Requests whose answers are held at once."""
_SHOWN_BYTES = 200
_NOT_FOUND, _GONE = 404, 410
_BODY = (Column("body", "json"),)
_NAMES = ("key", "id", "row")


class RecordRefused(CatchwaterError):
    """The endpoint says no to a record, and will again."""

    restart = Restart.ONCE


class Names(NamedTuple):
    """How a record's URL is made."""

    pieces: tuple[tuple[str, str | None], ...]
    """Text, and the name of what comes behind it."""
    output_id: tuple[str, ...]

    @property
    def are_identities(self) -> bool:
        """Whether a URL is that of one `output_id`: what it names can be taken back by it."""
        found = {name for _, name in self.pieces}
        return "id" in found and "row" not in found

    @property
    def names_records(self) -> bool:
        """Whether different records can have different URLs."""
        return any(name for _, name in self.pieces)

    def path(self, row: Expected) -> str:
        """The path of this record."""
        return "".join(
            text + (self._value(name, row) if name else "") for text, name in self.pieces
        )

    def _value(self, name: str, row: Expected) -> str:
        match name:
            case "key":
                return quote(row.record.key, safe="")
            case "row":
                return quote("-".join(map(str, row.id)), safe="")
        try:
            fields = json.loads(row.record.value)
            return quote(":".join(str(fields[field]) for field in self.output_id), safe="")
        except (ValueError, KeyError, TypeError) as error:
            raise RecordRefused(
                f"The output {row.id} (epoch/shard/row) has no {' and '.join(self.output_id)}, "
                "which its URL is made of.",
                hint="Let the function put out these fields always, or write {key} in the URL.",
            ) from error


def names_of(url: str, output_id: tuple[str, ...]) -> Names:
    """The URL's path as a template. Raises `ConfigError` for an unknown `{name}`."""
    parts = urlsplit(url)
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    try:
        pieces = tuple((text, name) for text, name, _, _ in string.Formatter().parse(path or "/"))
    except ValueError as error:
        raise ConfigError(f"url = {url!r} is not a template: {error}.") from error
    if any(not sign.isascii() or sign in " #" for text, _ in pieces for sign in text):
        raise ConfigError(
            f"url = {url!r} has characters that no URL takes.", hint="Escape them: %20 is a space."
        )
    for _, name in pieces:
        if name is not None and name not in _NAMES:
            raise ConfigError(
                f"url = {url!r} has {{{name}}}, which is not known.",
                hint="Write {key}, {id} (the function's output_id) or {row} (epoch-shard-row).",
            )
    return Names(pieces, output_id)


class HttpSink:
    """The driver's half; see `base.Sink`."""

    def __init__(
        self,
        endpoint: Endpoint,
        names: Names,
        config: SinkConfig,
        truth: Archive,
        *,
        pipeline: str,
        generation: int,
        clock: Clock,
    ) -> None:
        self.name = config.name
        self.truth = truth
        self._endpoint = endpoint
        self._names = names
        self._config = config
        self._pipeline = pipeline
        self._generation = generation
        self._clock = clock
        self._replaces = config.options["method"] == "PUT" and names.names_records
        self.retracts = self._replaces and names.are_identities
        self._oldest = 0

    def stager(self) -> StagedFile:
        """What the tasks stage with."""
        return self.truth.stager()

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        """Send the epoch's records, then write its mark."""
        pieces = sorted(staged, key=lambda piece: piece.shard)
        mark = Mark.of(epoch, self._generation, pieces)
        marks = self._marks()
        done = marks.admit(mark) if self._config.exactly_once else None
        if done is None:
            self.truth.record(epoch, pieces, self._clock.now_ms())
            for piece in pieces:
                self._send(self._rows_of(epoch, piece))
            if self._config.exactly_once:
                self._write(marks.written(mark, self._oldest))
        return mark.sink_epoch(self._endpoint.place)

    def last_epoch(self) -> int | None:
        """The newest epoch that was acknowledged whole."""
        return self._marks().newest

    def withdraw(self, after: int) -> None:
        """Put back what older generations replaced, delete what was not there before.

        Raises `RowsUnreadable` where URLs do not name records, or staged epochs are gone.
        """
        marks, gone = self._marks().withdrawn(after, self._generation)
        if marks == self._marks():
            return
        kept = self.truth.epochs()
        undone = sorted({*gone, *(epoch for epoch in kept if epoch > after)})
        if undone:
            self._readable("taken back")
            lost = sorted(set(gone) - set(kept))
            if lost:
                raise RowsUnreadable(
                    f"Epochs {lost[0]} to {lost[-1]} of the sink {self.name!r} are to be taken "
                    "back, but what they wrote is no longer kept.",
                    hint='Set keep = "7d", or as long as a rollback may reach.',
                )
            self._put_back([epoch for epoch in kept if epoch <= after], undone)
        self._write(marks)
        self.truth.withdraw(after)

    def identity(self, record: OutputRecord) -> bytes | None:
        """The URL, where it is the record's own and does not hold the row."""
        if not self._replaces or any(name == "row" for _, name in self._names.pieces):
            return None
        return self._names.path(Expected(RowId(0, 0, 0), record)).encode()

    def digest(self, record: OutputRecord) -> bytes:
        """Of the JSON, however it is spelled."""
        return _digest(record.value)

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        """What GET answers for every URL of these epochs."""
        self._readable("read back")
        newest = self._newest(epoch for epoch in self.truth.epochs() if first <= epoch <= last)
        for some in _some(list(newest.values())):
            gets = [Request("GET", self._names.path(row), None, "") for row in some]
            for row, get, answer in zip(some, gets, self._endpoint.send(gets), strict=True):
                if answer.status in (_NOT_FOUND, _GONE):
                    continue
                if answer.status != 200:
                    raise RowsUnreadable(
                        f"GET {self._endpoint.place}{get.path} was answered with status "
                        f"{answer.status}: the endpoint cannot be asked what it holds."
                    )
                yield SinkRow(row.id, row.record.key, _digest(answer.body))

    def repair(self, fixes: Iterable[Fix]) -> list[Fix]:
        """Put the records again, delete what was retracted; mends all that `rows` can find."""
        due = list(fixes)
        self._send([Expected(fix.id, fix.record) for fix in due if fix.record is not None])
        left = {fix.id for fix in due if fix.record is None}
        for epoch in sorted({id.epoch for id in left}):
            self._send([row for row in self.truth.rows(epoch) if row.id in left])
        return []

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Forget staged pieces of epochs before; their marks go with the next one."""
        self.truth.sweep(oldest, now_ms)
        self._oldest = oldest

    def close(self) -> None:
        """Close the connections."""
        self._endpoint.close()

    def _rows_of(self, epoch: int, piece: Staged) -> list[Expected]:
        records = self.truth.records(piece)
        return [Expected(RowId(epoch, piece.shard, at), r) for at, r in enumerate(records)]

    def _send(self, rows: Sequence[Expected]) -> None:
        """Send them; where later ones replace earlier ones, only the last of each URL."""
        if self._replaces:
            rows = list({self._names.path(row): row for row in rows}.values())
        for some in _some(rows):
            requests = [self._request(row) for row in some]
            for row, request, answer in zip(
                some, requests, self._endpoint.send(requests), strict=True
            ):
                gone = row.record.retracts and answer.status in (_NOT_FOUND, _GONE)
                if not (200 <= answer.status < 300 or gone):
                    raise self._refused(row, request, answer)

    def _request(self, row: Expected) -> Request:
        key = "/".join(quote(each, safe="") for each in (self._pipeline, self.name))
        return Request(
            "DELETE" if row.record.retracts else self._config.options["method"],
            self._names.path(row),
            None if row.record.retracts else row.record.value,
            f"{key}/{self._generation}/{row.id}",
        )

    def _refused(self, row: Expected, request: Request, answer: Answer) -> RecordRefused:
        text = " ".join(answer.body[:_SHOWN_BYTES].decode(errors="replace").split())
        return RecordRefused(
            f"{request.method} {self._endpoint.place}{request.path} was refused with status "
            f"{answer.status}: {text!r}. It is row {row.id} (epoch/shard/row), key "
            f"{row.record.key[:60]!r}.",
            hint="Mend the endpoint or its rules and start the pipeline again; the epoch runs "
            "again, and what was acknowledged already is sent again unchanged.",
        )

    def _put_back(self, before: Iterable[int], undone: Iterable[int]) -> None:
        wrong = self._newest(undone)
        older = self._newest(before)
        self._send([older[path] for path in wrong if path in older])
        deletes = [Request("DELETE", path, None, "") for path in wrong if path not in older]
        for some in _some(deletes):
            for request, answer in zip(some, self._endpoint.send(some), strict=True):
                if not 200 <= answer.status < 300 and answer.status not in (_NOT_FOUND, _GONE):
                    raise RecordRefused(
                        f"DELETE {self._endpoint.place}{request.path} was refused with status "
                        f"{answer.status}."
                    )

    def _newest(self, epochs: Iterable[int]) -> dict[str, Expected]:
        """By path: the last record of these epochs."""
        return {self._names.path(row): row for e in sorted(epochs) for row in self.truth.rows(e)}

    def _readable(self, done: str) -> None:
        if not self._replaces:
            raise RowsUnreadable(
                f"What the sink {self.name!r} has sent cannot be {done}: its URL names no record.",
                hint='Choose method = "PUT" and a URL with {key} or {id}.',
            )

    def _marks(self) -> Marks:
        store, key = self.truth.store, f"{self.truth.folder}/marks.json"
        nothing = Marks(self._pipeline, self.name, 0)
        try:
            marks = decode_marks(store.get(key), place(store, key))
        except ObjectMissing:
            return nothing
        marks.owned_by(nothing, place(store, key))
        return marks

    def _write(self, marks: Marks) -> None:
        self.truth.store.put(f"{self.truth.folder}/marks.json", [marks.encode()])


def _digest(body: bytes) -> bytes:
    try:
        text = body.decode()
        json.loads(text)
    except ValueError:
        text = json.dumps(body.hex())
    return digest_of(_BODY, [text])


def _some(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))
