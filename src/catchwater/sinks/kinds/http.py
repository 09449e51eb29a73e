"""HTTP: outputs as requests to a key-value store, a search index, any endpoint.

Every record is one `PUT` or `POST` with an `Idempotency-Key` that is the same in every repetition
of the epoch. When all records of an epoch are acknowledged, its mark is written beside the
checkpoint. So this sink is idempotent, not atomic: readers may see a part of an epoch before the
rest. A permanent refusal (4xx) names the record and fails the epoch at once.

A rebuild holds its records back (`SinkConfig.held`) and sends the newest of each URL in the end.

If the URL depends on the record, a later record with the same URL replaces it, a retraction is a
`DELETE` (if the URL is made of the `output_id`), and `verify` compares the answers of GET. Relies
on GET returning what was put.

Requests to one path are sent one after the other; the paths share `concurrency` connections that
stay open. Transient errors (429, 5xx, a lost connection, a timeout) are retried with growing pauses
until the request has waited for `retry`; then its worker gives up, and the others stop at their
next request.
"""

import http.client
import json
import re
import ssl
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote, unquote, urlsplit
from zlib import crc32

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, ConfigError, Restart
from catchwater.recovery.fenced import Claim
from catchwater.recovery.ledger import SinkEpoch
from catchwater.sinks.base import (
    Fix,
    OutputRecord,
    Patience,
    RowId,
    RowsUnreadable,
    SinkRow,
    SinkUnavailable,
    Staged,
    StagedRow,
    TargetState,
    Truth,
)
from catchwater.sinks.columns import Column, digest_of
from catchwater.sinks.config import (
    RETRY,
    RETRY_MS,
    Guarantee,
    ImpossibleDelivery,
    Kind,
    SinkConfig,
    count,
    duration,
    flag,
    one_of,
    option,
    text,
    truth_of,
    without_secrets,
    without_user,
)
from catchwater.sinks.epochs import Mark, Marks, Owner
from catchwater.sinks.kept_marks import KeptMarks

if TYPE_CHECKING:
    from catchwater.sinks.config import SinkContext
    from catchwater.sinks.epochs import Archive, StagedFile

T = TypeVar("T")

_AT_ONCE = 10_000
"""Bound on requests whose answers are held at a time."""
_SHOWN_BYTES = 200
_NOT_FOUND, _GONE = 404, 410
_BODY = (Column("body", "json"),)
_NAMES = ("key", "id", "row")
_TOO_MANY = 429
_PORTS = {"http": 80, "https": 443}

FENCE_HEADER = "Catchwater-Fence"
"""`<fence>; log=<log>`: an endpoint that has seen a higher fence of this log may refuse it."""


# Many requests to one server


class Request(NamedTuple):
    """One request; idempotent."""

    method: str
    path: str
    body: bytes | None
    idempotency_key: str


class Answer(NamedTuple):
    """A definite answer: neither 429 nor 5xx."""

    status: int
    body: bytes


class Endpoint:
    """One server."""

    def __init__(
        self,
        url: str,
        *,
        concurrency: int,
        timeout_ms: int,
        retry_ms: int,
        authorization: str,
        clock: Clock,
        claim: Claim | None = None,
        hold: Callable[[], None] = lambda: None,
    ) -> None:
        """Opens nothing yet. Raises `ConfigError` for a URL that is none."""
        if not _is_address(url):
            raise ConfigError(
                # The URL may hold a password.
                "url of a sink of kind http must be of the form http://host:port/path, without "
                "user and password.",
                hint="Credentials go into authorization, best from the environment.",
            )
        if not re.fullmatch(r"[\x20-\x7e]*", authorization.strip()):
            raise ConfigError(
                # It is a secret.
                "authorization of a sink of kind http has characters that no header takes.",
                hint="Is there a line's end in it, or a quotation mark of print?",
            )
        parts = urlsplit(url)
        self.place = f"{parts.scheme}://{parts.netloc}"
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        self._timeout_s = timeout_ms / 1000
        self._retry_ms = retry_ms
        self._headers = {"Authorization": authorization.strip()} if authorization else {}
        if claim is not None:
            self._headers[FENCE_HEADER] = f"{claim.fence}; log={claim.log}"
        self._hold = hold
        self._clock = clock
        self._connections: list[http.client.HTTPConnection | None] = [None] * concurrency
        self._workers = ThreadPoolExecutor(concurrency, thread_name_prefix="catchwater-http")

    def reach(self) -> None:
        """Connect without a request. Raises `SinkUnavailable`."""
        try:
            self._connect(0).connect()
        except OSError as error:
            raise SinkUnavailable(f"{self.place} cannot be reached: {error}.") from error
        finally:
            self._drop(0)

    def send(self, requests: Sequence[Request]) -> list[Answer]:
        """All answers, in the order of the requests. Raises `SinkUnavailable`."""
        shares: list[list[int]] = [[] for _ in self._connections]
        for index, request in enumerate(requests):
            shares[crc32(request.path.encode()) % len(shares)].append(index)
        answers: list[Answer | None] = [None] * len(requests)
        stop = Event()

        def work(worker: int) -> None:
            for index in shares[worker]:
                answers[index] = self._send(worker, requests[index], stop)

        running = [self._workers.submit(work, worker) for worker in range(len(shares))]
        for failure in [each.exception() for each in running]:
            if failure is not None:
                raise failure
        return [answer for answer in answers if answer is not None]

    def close(self) -> None:
        self._workers.shutdown()
        for worker in range(len(self._connections)):
            self._drop(worker)

    def _send(self, worker: int, request: Request, stop: Event) -> Answer | None:
        """The answer; None if another worker gave up meanwhile."""
        patience = Patience(self._clock, self._retry_ms)
        while not stop.is_set():
            # What a successor has sent since must not be replaced by what is older.
            self._hold()
            try:
                return self._attempt(worker, request)
            except SinkUnavailable as error:
                try:
                    patience.wait(error)
                except SinkUnavailable:
                    stop.set()
                    raise
        return None

    def _attempt(self, worker: int, request: Request) -> Answer:
        headers = {"Idempotency-Key": f'"{request.idempotency_key}"', **self._headers}
        if request.body is not None:
            headers["Content-Type"] = "application/json"
        what = f"{request.method} {self.place}{request.path}"
        try:
            connection = self._connections[worker] or self._connect(worker)
            connection.request(request.method, request.path, request.body, headers)
            response = connection.getresponse()
            answer = Answer(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            self._drop(worker)
            reason = str(error) or type(error).__name__
            raise SinkUnavailable(f"{what} was not answered: {reason}.") from error
        if response.will_close:
            self._drop(worker)
        if answer.status == _TOO_MANY or answer.status >= 500:
            raise SinkUnavailable(f"{what} was answered with status {answer.status}.")
        return answer

    def _connect(self, worker: int) -> http.client.HTTPConnection:
        where = (self._host, self._port)
        if self._secure:
            context = ssl.create_default_context()
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                *where, timeout=self._timeout_s, context=context
            )
        else:
            connection = http.client.HTTPConnection(*where, timeout=self._timeout_s)
        self._connections[worker] = connection
        return connection

    def _drop(self, worker: int) -> None:
        connection, self._connections[worker] = self._connections[worker], None
        if connection is not None:
            connection.close()


def _is_address(url: str) -> bool:
    """Whether requests can be sent there: `http://host:port/path`, without user and password."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    return parts.scheme in _PORTS and bool(parts.hostname) and "@" not in parts.netloc and port != 0


# The sink


class RecordRefused(CatchwaterError):
    """The endpoint refuses a record for good."""

    restart = Restart.ONCE


class Names(NamedTuple):
    """The template of a record's URL."""

    pieces: tuple[tuple[str, str | None], ...]
    """Pairs of a text and the name that follows it."""
    output_id: tuple[str, ...]

    @property
    def are_identities(self) -> bool:
        """Whether each `output_id` has its own URL, so that a retraction can delete it."""
        found = {name for _, name in self.pieces}
        return "id" in found and "row" not in found

    @property
    def names_records(self) -> bool:
        """Whether different records can have different URLs."""
        return any(name for _, name in self.pieces)

    def path(self, row: StagedRow) -> str:
        """The path of this record."""
        return "".join(
            text + (self._value(name, row) if name else "") for text, name in self.pieces
        )

    def _value(self, name: str, row: StagedRow) -> str:
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
    """See `base.Sink`."""

    def __init__(
        self,
        endpoint: Endpoint,
        names: Names,
        config: SinkConfig,
        truth: "Archive",
        *,
        owner: Owner,
        clock: Clock,
    ) -> None:
        self.name = config.name
        self.truth = truth
        self._endpoint = endpoint
        self._names = names
        self._config = config
        self._owner = owner
        self._clock = clock
        self._replaces = config.options.method == "PUT" and names.names_records
        self.retracts = self._replaces and names.are_identities
        self._oldest = 0
        self._kept = _kept_marks(truth, owner)
        self._kept.claim()

    def stager(self) -> "StagedFile":
        return self.truth.stager()

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        pieces = sorted(staged, key=lambda piece: piece.shard)
        mark = Mark.of(epoch, self._owner.generation, pieces)
        marks = self._kept.read()
        done = marks.admit(mark) if self._config.exactly_once else None
        if done is None:
            self.truth.record(epoch, pieces, self._clock.now_ms())
            for piece in () if self._config.held else pieces:
                self._send(self._rows_of(epoch, piece))
            if self._config.exactly_once:
                self._kept.write(marks.written(mark, self._oldest))
        return mark.sink_epoch(self._endpoint.place)

    def last_epoch(self) -> int | None:
        """The newest epoch of which all records were acknowledged."""
        return self._kept.read().newest

    def withdraw(self, after: int) -> None:
        """Restore the records that older generations replaced, delete those they added.

        Raises `RowsUnreadable` where URLs do not name records, or staged epochs are gone.
        """
        before = self._kept.read()
        marks, gone = before.withdrawn(after, self._owner.generation)
        if marks == before:
            return
        kept = self.truth.epochs()
        undone = sorted({*gone, *(epoch for epoch in kept if epoch > after)})
        if undone:
            self._readable("taken back")
            # Marks are dropped with what was staged, so they do not show what is missing.
            lost = sorted({*range(after + 1, undone[-1])} - {*kept})
            if lost:
                raise RowsUnreadable(
                    f"Epochs {lost[0]} to {lost[-1]} of the sink {self.name!r} are to be taken "
                    "back, but what they wrote is no longer kept.",
                    hint='Set keep = "7d", or as long as a rollback may reach.',
                )
            self._put_back([epoch for epoch in kept if epoch <= after], undone)
        self._kept.write(marks)
        self.truth.withdraw(after)

    def identity(self, record: OutputRecord) -> bytes | None:
        """The URL, if it depends on the record and not on its row."""
        if not self._replaces or any(name == "row" for _, name in self._names.pieces):
            return None
        return self._names.path(StagedRow(RowId(0, 0, 0), record)).encode()

    def digest(self, record: OutputRecord) -> bytes:
        """Over the JSON in a canonical form."""
        return _digest(record.value)

    def rows(self, first: int, last: int) -> Iterator[SinkRow]:
        """The answers of GET for all URLs of these epochs."""
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
        """Send the records again, delete retracted ones; repairs all that `rows` can find."""
        due = list(fixes)
        self._send([StagedRow(fix.id, fix.record) for fix in due if fix.record is not None])
        left = {fix.id for fix in due if fix.record is None}
        for epoch in sorted({id.epoch for id in left}):
            self._send([row for row in self.truth.rows(epoch) if row.id in left])
        return []

    def take_place(self, pipeline: str, before: Truth) -> int:
        """Send the newest of what was held, and delete what else another pipeline has put there.

        The other one's sink has this one's name, and goes on with this one's epochs; `before` is
        what was staged for it, as far as that is kept. Gives how many records there are now, -1 if
        it was done before. Readers see one record after the other change.
        """
        if self._kept.are_of(pipeline):
            return -1
        newest = {
            self._names.path(row): row.id
            for epoch in self.truth.epochs()
            for row in self.truth.rows(epoch)
        }
        records = 0
        for epoch in self.truth.epochs():
            rows = self.truth.rows(epoch)
            due = [row for row in rows if newest[self._names.path(row)] == row.id]
            records += sum(not row.record.retracts for row in due)
            self._send(due)
        theirs = {self._names.path(row) for at in before.epochs() for row in before.rows(at)}
        self._delete(sorted(theirs - newest.keys()))
        self._kept.give(pipeline)
        return records

    def sweep(self, oldest: int, now_ms: int) -> None:
        """Delete staged pieces of earlier epochs; the next commit drops their marks."""
        if self._config.held:
            return
        self.truth.sweep(oldest, now_ms)
        self._oldest = oldest

    def close(self) -> None:
        self._endpoint.close()

    def _rows_of(self, epoch: int, piece: Staged) -> list[StagedRow]:
        records = self.truth.records(piece)
        return [StagedRow(RowId(epoch, piece.shard, at), r) for at, r in enumerate(records)]

    def _send(self, rows: Sequence[StagedRow]) -> None:
        """Send records; if later ones replace earlier ones, only the last for each URL."""
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

    def _request(self, row: StagedRow) -> Request:
        key = "/".join(quote(each, safe="") for each in (self._owner.pipeline, self.name))
        return Request(
            "DELETE" if row.record.retracts else self._config.options.method,
            self._names.path(row),
            None if row.record.retracts else row.record.value,
            f"{key}/{self._owner.generation}/{row.id}",
        )

    def _refused(self, row: StagedRow, request: Request, answer: Answer) -> RecordRefused:
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
        self._delete([path for path in wrong if path not in older])

    def _delete(self, paths: Iterable[str]) -> None:
        deletes = [Request("DELETE", path, None, "") for path in paths]
        for some in _some(deletes):
            for request, answer in zip(some, self._endpoint.send(some), strict=True):
                if not 200 <= answer.status < 300 and answer.status not in (_NOT_FOUND, _GONE):
                    raise RecordRefused(
                        f"DELETE {self._endpoint.place}{request.path} was refused with status "
                        f"{answer.status}."
                    )

    def _newest(self, epochs: Iterable[int]) -> dict[str, StagedRow]:
        """The last record of each path in these epochs."""
        return {self._names.path(row): row for e in sorted(epochs) for row in self.truth.rows(e)}

    def _readable(self, done: str) -> None:
        if not self._replaces:
            raise RowsUnreadable(
                f"What the sink {self.name!r} has sent cannot be {done}: its URL names no record.",
                hint='Choose method = "PUT" and a URL with {key} or {id}.',
            )


def _digest(body: bytes) -> bytes:
    try:
        text = body.decode()
        json.loads(text)
    except ValueError:
        text = json.dumps(body.hex())
    return digest_of(_BODY, [text])


def _some(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))


# The declaration


@dataclass(frozen=True)
class HttpOptions:
    """The keys of an HTTP sink."""

    url: str = option(text, doc="may hold {key}, {id} (the output_id) and {row}")
    method: str = option(one_of("PUT", "POST"), "PUT", doc="of every request")
    deduplicates: bool = option(
        flag, False, doc="whether the endpoint knows a request by its Idempotency-Key"
    )
    concurrency: int = option(count, 16, doc="connections")
    timeout_ms: int = option(duration, 10_000, key="timeout", doc="how long one answer may take")
    retry_ms: int = option(duration, RETRY_MS, key="retry", doc=RETRY)
    authorization: str = option(text, "", doc="the header; best from the environment")


def _replaced(options: HttpOptions) -> str:
    named = any(part in options.url for part in ("{key}", "{id}"))
    return "those of the same URL" if options.method == "PUT" and named else ""


def _guarantee(config: SinkConfig, output_id: tuple[str, ...]) -> Guarantee:
    options: HttpOptions = config.options
    named = any(part in options.url for part in ("{key}", "{id}", "{row}"))
    if "{id}" in options.url and not output_id:
        raise ImpossibleDelivery(
            f"The URL of the sink {config.name!r} has {{id}}, but the function declares no "
            "output_id.",
            hint='Declare output_id=("field", …) in @function, or write {key} or {row}.',
        )
    if options.method == "PUT" and named:
        return Guarantee("idempotent", "PUT under a URL that names the record: again is the same")
    if options.deduplicates:
        return Guarantee("idempotent", "the endpoint knows a request by its Idempotency-Key")
    if config.exactly_once:
        raise ImpossibleDelivery(
            f"The sink {config.name!r} cannot write exactly once: a repeated "
            f"{options.method} {options.url} is another one to the endpoint.",
            hint='Choose method = "PUT" and a URL with {key}, {id} or {row}; or deduplicates = '
            '"true" if the endpoint honours Idempotency-Key; or delivery = "at-least-once".',
        )
    return Guarantee("at-least-once", "a repeated request is another one; Idempotency-Key tells it")


def _endpoint(config: SinkConfig, context: "SinkContext") -> Endpoint:
    """Opens the sink without connecting."""
    options: HttpOptions = config.options
    return Endpoint(
        options.url,
        concurrency=options.concurrency,
        timeout_ms=options.timeout_ms,
        retry_ms=options.retry_ms,
        authorization=options.authorization,
        clock=context.clock,
        claim=context.claim,
        hold=context.hold,
    )


def _check(config: SinkConfig, context: "SinkContext") -> None:
    _endpoint(config, context).close()
    names_of(config.options.url, context.output_id)


def _open(config: SinkConfig, context: "SinkContext", truth: "Archive") -> HttpSink:
    endpoint = _endpoint(config, context)
    names = names_of(config.options.url, context.output_id)
    owner = context.owner(config.name)
    return HttpSink(endpoint, names, config, truth, owner=owner, clock=context.clock)


def _look(config: SinkConfig, context: "SinkContext") -> TargetState:
    """Whether the server answers; the marks of what it was sent lie beside the checkpoint."""
    with closing(_endpoint(config, context)) as endpoint:
        endpoint.reach()
    home = urlsplit(context.objects)
    if not home.scheme or (home.scheme == "file" and not Path(unquote(home.path)).exists()):
        return TargetState()  # nothing was put out yet, and nothing is made here
    truth = truth_of(config, context)
    newest = _kept_marks(truth, context.owner(config.name)).read().newest
    if newest is None:
        return TargetState()
    taken_back = bool(_replaced(config.options))
    return TargetState(
        newest=newest, undone_from=truth.whole_from(newest) if taken_back else newest + 1
    )


def _kept_marks(truth: "Archive", owner: Owner) -> KeptMarks:
    nothing = Marks(owner.pipeline, owner.sink, 0)
    return KeptMarks(truth.store, f"{truth.folder}/marks", owner, nothing)


def _target(config: SinkConfig, folder: Path) -> str:
    return without_secrets(config.options.url)


KIND = Kind(
    name="http",
    options=HttpOptions,
    guarantee=_guarantee,
    target=_target,
    place=lambda options: without_user(options.url),
    named_by="url",
    check=_check,
    open=_open,
    look=_look,
    reads_many=False,
    aside=lambda config, label: "" if _replaced(config.options) else None,
    replaces=_replaced,
)
