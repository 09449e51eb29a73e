"""URLs by record, refusals by name, marks after acknowledgement, and what is put back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.kv_server import KeyValueServer, key_value_server

from catchwater.clock import ManualClock
from catchwater.config import ConfigError
from catchwater.sinks.base import OutputRecord, RowId, RowsUnreadable, SinkUnavailable, StagedRow
from catchwater.sinks.config import SinkContext, open_sink, parse
from catchwater.sinks.kinds.http import RecordRefused, names_of


@pytest.fixture
def server() -> Iterator[KeyValueServer]:
    with key_value_server() as running:
        yield running


def opened(root: Path, url: str, generation: int = 0, **more: str) -> Any:
    context = SinkContext("cards", root.as_uri(), root, generation=generation,
                          output_id=("id",), clock=ManualClock())  # fmt: skip
    return open_sink(parse("kv", {"kind": "http", "url": url, "retry": "5s", **more}), context)


def records(*ids: str, value: int = 0) -> list[OutputRecord]:
    return [OutputRecord(id.encode(), b'{"id":"%s","v":%d}' % (id.encode(), value), 0)
            for id in ids]  # fmt: skip


def row(key: bytes = b"a/b c", value: bytes = b'{"id":"x y","n":7}') -> StagedRow:
    return StagedRow(RowId(3, 1, 2), OutputRecord(key, value, 0))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://h/kv/{key}", "/kv/a%2Fb%20c"),
        ("http://h/{id}/doc?x=1", "/x%20y%3A7/doc?x=1"),
        ("http://h/r/{row}", "/r/3-1-2"),
        ("http://h", "/"),
    ],
)
def test_a_record_has_its_url(url: str, path: str) -> None:
    assert names_of(url, ("id", "n")).path(row()) == path


def test_a_name_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"has \{card\}, which is not known"):
        names_of("http://h/{card}", ())
    with pytest.raises(ConfigError, match="is not a template"):
        names_of("http://h/{key", ())


def test_every_request_has_a_key_that_a_repetition_has_too(
    server: KeyValueServer, tmp_path: Path
) -> None:
    for _ in range(2):
        sink = opened(tmp_path, f"{server.url}/{{key}}", delivery="at-least-once")
        sink.commit(0, [sink.stager().stage(0, 4, records("a", "b"))])
        sink.close()
    keys = sorted(key for _, _, key in server.requests if key)
    assert keys == ['"cards/kv/0/0/4/0"'] * 2 + ['"cards/kv/0/0/4/1"'] * 2


def test_a_refused_record_is_named_and_the_epoch_has_no_mark(
    server: KeyValueServer, tmp_path: Path
) -> None:
    sink = opened(tmp_path, f"{server.url}/{{key}}", concurrency="1")
    server.faults = [422]
    with pytest.raises(RecordRefused, match=r"PUT .*/a was refused with status 422.*row 0/4/0"):
        sink.commit(0, [sink.stager().stage(0, 4, records("a", "b"))])
    assert sink.last_epoch() is None
    sink.commit(0, [sink.stager().stage(0, 4, records("a", "b"))])
    assert sink.last_epoch() == 0
    sink.close()


def test_an_endpoint_that_is_down_fails_the_epoch_which_then_runs_again(
    server: KeyValueServer, tmp_path: Path
) -> None:
    sink = opened(tmp_path, f"{server.url}/{{key}}")
    server.faults = [503] * 10_000
    with pytest.raises(SinkUnavailable, match="nothing is lost"):
        sink.commit(0, [sink.stager().stage(0, 0, records(*"abcdef"))])
    server.faults = []
    sink.commit(0, [sink.stager().stage(0, 0, records(*"abcdef"))])
    assert len(server.content) == 6
    sink.close()


def test_of_one_url_only_the_last_value_of_a_shard_is_sent(
    server: KeyValueServer, tmp_path: Path
) -> None:
    sink = opened(tmp_path, f"{server.url}/{{key}}")
    many = [each for v in range(5) for each in records("a", value=v)]
    sink.commit(0, [sink.stager().stage(0, 0, many)])
    assert server.content == {"/a": b'{"id":"a","v":4}'}
    assert len(server.requests) == 1
    sink.close()


def test_posts_keep_their_order_and_cannot_be_read_or_taken_back(
    server: KeyValueServer, tmp_path: Path
) -> None:
    url = f"{server.url}/events"
    sink = opened(tmp_path, url, method="POST", deduplicates="true")
    sink.commit(0, [sink.stager().stage(0, 0, records(*"abc"))])
    assert [body[7:8] for body in server.content.values()] == [b"a", b"b", b"c"]
    with pytest.raises(RowsUnreadable, match="cannot be read back"):
        list(sink.rows(0, 0))
    sink.close()
    newer = opened(tmp_path, url, 1, method="POST", deduplicates="true")
    with pytest.raises(RowsUnreadable, match="cannot be taken back"):
        newer.withdraw(-1)
    newer.close()


def test_what_is_no_longer_kept_cannot_be_taken_back(
    server: KeyValueServer, tmp_path: Path
) -> None:
    sink = opened(tmp_path, f"{server.url}/{{key}}")
    for epoch in range(3):
        sink.commit(epoch, [sink.stager().stage(epoch, 0, records("a", value=epoch))])
    sink.sweep(2, 10**15)
    sink.close()
    newer = opened(tmp_path, f"{server.url}/{{key}}", 1)
    with pytest.raises(RowsUnreadable, match="Epochs 1 to 1 of the sink 'kv'") as refused:
        newer.withdraw(0)
    assert 'keep = "7d"' in str(refused.value.hint)
    newer.close()


def test_an_epoch_that_was_sent_in_part_is_taken_back_too(
    server: KeyValueServer, tmp_path: Path
) -> None:
    sink = opened(tmp_path, f"{server.url}/{{key}}", concurrency="1")
    sink.commit(0, [sink.stager().stage(0, 0, records("a"))])
    pieces = [sink.stager().stage(1, 0, records("a", "b", "c", value=1))]
    server.faults = [None, 400]  # type: ignore[list-item]
    with pytest.raises(RecordRefused):
        sink.commit(1, pieces)
    sink.close()
    newer = opened(tmp_path, f"{server.url}/{{key}}", 1)
    newer.withdraw(0)
    assert server.content == {"/a": b'{"id":"a","v":0}'}
    newer.close()


def test_an_output_without_what_its_url_is_made_of_is_named() -> None:
    names = names_of("http://h/{id}", ("id", "n"))
    for value in (b'{"id":"x"}', b"[1]", b"{"):
        with pytest.raises(RecordRefused, match=r"output 3/1/2 .* has no id and n"):
            names.path(row(value=value))


@pytest.mark.parametrize("url", ["http://h/\u00e4/{key}", "http://h/a b/{key}"])
def test_a_url_that_no_request_could_have_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="has characters that no URL takes"):
        names_of(url, ())


def test_what_was_held_is_sent_in_the_end_and_the_other_pipelines_marks_are_taken_over(
    server: KeyValueServer, tmp_path: Path
) -> None:
    live = opened(tmp_path / "live", f"{server.url}/{{id}}")
    live.commit(0, [live.stager().stage(0, 0, records("a", "wrong", value=1))])
    config = parse("kv", {"kind": "http", "url": f"{server.url}/{{id}}", "retry": "5s"})
    root = tmp_path / "rebuild"
    anew = SinkContext("cards.anew", root.as_uri(), root, output_id=("id",), clock=ManualClock())
    held = config.put_aside("")
    sink: Any = open_sink(held, anew)
    sink.commit(0, [sink.stager().stage(0, 0, records("a", "b", value=2))])
    sink.commit(1, [sink.stager().stage(1, 1, records("a", "c", value=3))])
    sink.sweep(1, 10**15)
    assert sorted(server.content) == ["/a", "/wrong"], "nothing was sent"

    server.faults = [422]
    with pytest.raises(RecordRefused):
        sink.take_place("cards", live.truth)
    assert sink.take_place("cards", live.truth) == 3
    values = {"/a": 3, "/b": 2, "/c": 3}
    assert {path: json.loads(body)["v"] for path, body in server.content.items()} == values
    requests = len(server.requests)
    assert sink.take_place("cards", live.truth) == -1
    assert len(server.requests) == requests
    live.close()
    sink.close()

    # The live pipeline goes on with the rebuild's epochs.
    after = opened(root, f"{server.url}/{{id}}", generation=1)
    assert after.last_epoch() == 1
    after.commit(2, [after.stager().stage(2, 0, records("d"))])
    assert "/d" in server.content
    after.close()


def test_only_what_replaces_can_be_put_aside() -> None:
    def aside(url: str, **more: str) -> str | None:
        config = parse("kv", {"kind": "http", "url": url, **more})
        return config.declared.aside(config, "anew")

    assert aside("http://h/{id}") == aside("http://h/{key}") == ""
    assert aside("http://h/{row}") is aside("http://h/x") is None
    assert aside("http://h/{id}", method="POST", deduplicates="true") is None
