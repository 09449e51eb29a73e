"""Requests side by side: in order per path, tried again, given up together."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.conformance.kv_server import KeyValueServer, key_value_server

from catchwater.clock import ManualClock
from catchwater.config import ConfigError
from catchwater.sinks.base import SinkUnavailable
from catchwater.sinks.kinds.http import Endpoint, Request


@pytest.fixture
def server() -> Iterator[KeyValueServer]:
    with key_value_server() as running:
        yield running


def endpoint(url: str, **more: Any) -> Any:
    given = {"concurrency": 4, "timeout_ms": 5000, "retry_ms": 30_000, "authorization": "",
             "clock": ManualClock()}  # fmt: skip
    return closing(Endpoint(url, **{**given, **more}))


def puts(count: int, paths: int = 10) -> list[Request]:
    return [Request("PUT", f"/{i % paths}", b"%d" % i, f"p/s/0/0/0/{i}") for i in range(count)]


def test_answers_come_in_the_order_of_the_requests_and_paths_keep_theirs(
    server: KeyValueServer,
) -> None:
    with endpoint(server.url) as target:
        answers = target.send([*puts(100), *(Request("GET", f"/{i}", None, "") for i in range(11))])
    assert [answer.status for answer in answers[:100]] == [200] * 100
    assert [answer.body for answer in answers[100:]] == [b"%d" % (90 + i) for i in range(10)] + [
        b""
    ]
    assert answers[110].status == 404
    order = defaultdict(list)
    for method, path, key in server.requests:
        if method == "PUT":
            order[path].append(key)
    assert all(keys == sorted(keys, key=lambda key: int(key.split("/")[-1].strip('"')))
               for keys in order.values())  # fmt: skip


@pytest.mark.parametrize("fault", [429, 500, 503, "lost"])
def test_what_may_pass_is_tried_again_under_the_same_key(
    server: KeyValueServer, fault: int | str
) -> None:
    server.faults = [fault] * 5
    with endpoint(server.url, concurrency=1) as target:
        (answer,) = target.send(puts(1))
    assert answer.status == 200
    assert len(server.requests) == 6
    assert {key for _, _, key in server.requests} == {'"p/s/0/0/0/0"'}
    assert server.content == {"/0": b"0"}


def test_a_definite_refusal_is_an_answer(server: KeyValueServer) -> None:
    server.faults = [400]
    with endpoint(server.url, concurrency=1) as target:
        first, second = target.send(puts(2))
    assert (first.status, second.status) == (400, 200)
    assert b"as planned" in first.body


def test_a_server_that_stays_away_is_given_up_by_all_workers(server: KeyValueServer) -> None:
    server.faults = [503] * 100_000
    clock = ManualClock()
    with endpoint(server.url, clock=clock, retry_ms=5000) as target:
        with pytest.raises(SinkUnavailable, match=r"status 503\. Given up after \d+ tries"):
            target.send(puts(400))
        assert len(server.requests) < 200, "nobody goes on with the rest"
        server.faults = []
        assert all(answer.status == 200 for answer in target.send(puts(40)))


def test_nobody_there_is_named() -> None:
    with endpoint("http://127.0.0.1:1/x", retry_ms=1000) as target:
        with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:1/0 was not answered: .*refused"):
            target.send(puts(1))


@pytest.mark.parametrize("url", ["ftp://h/x", "http:///x", "http://me:secret@h/x"])
def test_a_url_that_is_none_or_holds_a_password_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Endpoint(url, concurrency=1, timeout_ms=1, retry_ms=1, authorization="",
                 clock=ManualClock())  # fmt: skip
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://h:99999/x", "http://h:abc/x", "http://[h/x", "http:///x"])
def test_a_port_that_is_none_is_a_mistake_in_the_file(url: str) -> None:
    with pytest.raises(ConfigError, match="must be of the form http://host:port/path"):
        with endpoint(url):
            pass


def test_a_secret_that_no_header_takes_is_not_told(server: KeyValueServer) -> None:
    with pytest.raises(ConfigError, match="characters that no header takes") as refused:
        with endpoint(server.url, authorization="Bearer s3c\nret"):
            pass
    assert "s3c" not in str(refused.value)
    with endpoint(server.url, authorization="Bearer s3cret\n") as target:
        assert target.send(puts(1))[0].status == 200
