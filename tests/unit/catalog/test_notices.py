"""Notices as they travel, and the listener that finds out that it is deaf."""

import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest

from catchwater.catalog.rows import Notice
from catchwater.catalog.server import Listener, decode_notice, encode_notice
from catchwater.clock import ManualClock

T1 = b"1" * 16


@pytest.mark.parametrize("kind", ["partitions", "topics", "brokers", "resync"])
def test_a_notice_comes_back_as_it_was(kind: Any) -> None:
    notice = Notice(kind, [(T1, 3, 1, 2**62)] if kind == "partitions" else [])
    [payload] = encode_notice(notice)
    assert decode_notice(payload) == notice


def test_a_large_notice_travels_in_pieces_that_postgresql_takes() -> None:
    rows = [(T1, 2**31 - 1 - index, 2**62, 2**63 - 1) for index in range(500)]
    payloads = list(encode_notice(Notice("partitions", rows)))
    assert max(len(payload.encode()) for payload in payloads) < 8000
    notices = [decode_notice(payload) for payload in payloads]
    assert [row for notice in notices if notice for row in notice.partitions] == rows


@pytest.mark.parametrize("payload", ["", "{", "[]", '{"kind":"heartbeat"}', '{"kind":"newer"}'])
def test_what_is_no_notice_of_ours_is_passed_over(payload: str) -> None:
    assert decode_notice(payload) is None


class Message(NamedTuple):
    payload: str


class FakeConnection:
    """One second passes whenever nothing is heard; a deaf one hears not even itself."""

    def __init__(self, clock: ManualClock, *, is_deaf: bool) -> None:
        self._clock = clock
        self._is_deaf = is_deaf
        self._waiting: list[Message] = []
        self.heartbeats = 0
        self.is_closed = False

    def notifies(self, timeout: float) -> Iterator[Message]:
        if not self._waiting:
            self._clock.advance(1000)
        while self._waiting:
            yield self._waiting.pop()

    def execute(self, statement: str, parameters: tuple[str]) -> None:
        self.heartbeats += 1
        if not self._is_deaf:
            self._waiting.append(Message(*parameters))

    def close(self) -> None:
        self.is_closed = True


class FakePool:
    def __init__(self, *connections: FakeConnection) -> None:
        self._connections = iter(connections)

    def connect(self, *statements: str) -> FakeConnection:
        assert statements == ("LISTEN catchwater",)
        return next(self._connections)

    def describe(self, error: psycopg.Error) -> str:
        return str(error)


def test_a_deaf_connection_is_replaced_and_everything_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("catchwater.catalog.server._RECONNECT_S", 0)
    clock = ManualClock()
    deaf, well = FakeConnection(clock, is_deaf=True), FakeConnection(clock, is_deaf=False)
    heard: list[Notice] = []
    resynced = threading.Event()

    def notify(notice: Notice) -> None:
        heard.append(notice)
        resynced.set()

    listener = Listener(FakePool(deaf, well), notify, clock)  # type: ignore[arg-type]
    assert resynced.wait(60)
    while well.heartbeats < 3:
        assert listener._thread.is_alive()
    listener.close()
    assert heard == [Notice("resync")]
    assert deaf.heartbeats == 1
    assert deaf.is_closed and well.is_closed
