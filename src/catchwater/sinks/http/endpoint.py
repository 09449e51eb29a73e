"""Many requests to one server: side by side, in order where it matters, patient and bounded.

Requests of one path follow each other; others share `concurrency` connections that stay open. What
may pass (429, 5xx, a lost connection, no answer in time) is tried again with growing pauses until
that request has waited for `retry`; then its worker gives up, and all others stop at their next
request. Holds the requests it is given and their answers, so give it some at a time.
"""

import http.client
import re
import ssl
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import NamedTuple
from urllib.parse import urlsplit
from zlib import crc32

from catchwater.clock import Clock
from catchwater.config import ConfigError
from catchwater.sinks.base import SinkUnavailable
from catchwater.sinks.patience import Patience

_TOO_MANY = 429
_PORTS = {"http": 80, "https": 443}


class Request(NamedTuple):
    """One request; again is the same."""

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
        self._clock = clock
        self._connections: list[http.client.HTTPConnection | None] = [None] * concurrency
        self._workers = ThreadPoolExecutor(concurrency, thread_name_prefix="catchwater-http")

    def reach(self) -> None:
        """Connect, and ask nothing. Raises `SinkUnavailable`."""
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
        """Close the connections."""
        self._workers.shutdown()
        for worker in range(len(self._connections)):
            self._drop(worker)

    def _send(self, worker: int, request: Request, stop: Event) -> Answer | None:
        """The answer; None if another worker has given up meanwhile."""
        patience = Patience(self._clock, self._retry_ms)
        while not stop.is_set():
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
            told = str(error) or type(error).__name__
            raise SinkUnavailable(f"{what} was not answered: {told}.") from error
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
