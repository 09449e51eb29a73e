"""What a version put out is taken back from sinks that write no marks, too, as far as they can."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.conformance.kv_server import KeyValueServer, key_value_server

from catchwater.clock import Clock
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.versions import Identity
from catchwater.recovery.folder import home_of
from catchwater.sinks.base import OutputRecord
from catchwater.sinks.config import SinkContext, open_sink, parse


def opened(config: PipelineConfig) -> OpenPipeline:
    """With another Kafka, which is never asked."""
    pipeline = OpenPipeline(config, clock=Clock(5))
    pipeline.control = None
    return pipeline


class Writer:
    """Writes epochs of one sink as a pipeline would, and takes them back."""

    def __init__(self, folder: Path, section: dict[str, str]) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.sink = parse("kv", {**section, "retry": "1s", "delivery": "at-least-once"})

    def write(self, epoch: int, value: str) -> None:
        context = SinkContext("cards", home_of(self.checkpoint), self.folder)
        sink = open_sink(self.sink, context)
        record = OutputRecord(b"a", b'{"value":"%s"}' % value.encode(), 0)
        sink.commit(epoch, [sink.stager().stage(epoch, 0, [record])])
        sink.close()

    def withdraw(self, epoch: int) -> int:
        config = PipelineConfig(
            functions=("no:Function",),
            name="cards",
            checkpoint=self.checkpoint,
            source={"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"},
            sinks={"kv": self.sink},
            folder=self.folder,
        )
        function = SimpleNamespace(name="f", output_type=None, output_id=(), late_sink=None)
        return opened(config).withdraw([function], self.checkpoint, epoch, 1)


@pytest.fixture
def server() -> Iterator[KeyValueServer]:
    with key_value_server() as running:
        yield running


def test_an_endpoint_without_marks_gets_the_older_values_back(
    server: KeyValueServer, tmp_path: Path
) -> None:
    writer = Writer(tmp_path, {"kind": "http", "url": f"{server.url}/{{key}}"})
    for epoch, value in enumerate(("good", "bad", "worse")):
        writer.write(epoch, value)
    writer.write(2, "worse")  # again, as at least once means
    assert writer.withdraw(0) == 1
    assert server.content == {"/a": b'{"value":"good"}'}
    assert writer.withdraw(0) == 1
    writer.write(1, "mended")
    assert server.content == {"/a": b'{"value":"mended"}'}


def test_rows_without_marks_are_deleted(tmp_path: Path) -> None:
    path = {"kind": "sqlite", "path": "rows.db", "table": "values"}
    writer = Writer(tmp_path, path)
    for epoch, value in enumerate(("good", "bad")):
        writer.write(epoch, value)
    assert writer.withdraw(0) == 1
    with closing(sqlite3.connect(tmp_path / "rows.db")) as database:
        assert database.execute('SELECT value FROM "values"').fetchall() == [(b'{"value":"good"}',)]


def test_what_was_posted_stays_and_that_is_said(
    server: KeyValueServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(tmp_path, {"kind": "http", "url": f"{server.url}/log", "method": "POST"})
    for epoch, value in enumerate(("good", "bad")):
        writer.write(epoch, value)
    assert writer.withdraw(0) == 1
    assert "What the sink 'kv' has sent cannot be taken back" in caplog.text
    assert len(server.content) == 2
    caplog.clear()
    assert writer.withdraw(0) == 1
    assert not caplog.text


def test_savepoints_of_one_name_at_two_places_have_a_pin_each(tmp_path: Path) -> None:
    config = PipelineConfig(
        functions=("no:Function",), name="cards", checkpoint=tmp_path / "checkpoint", source={},
        sinks={}, folder=tmp_path,
    )  # fmt: skip
    pipeline = opened(config)
    elsewhere = pipeline.shelf((tmp_path / "elsewhere").as_uri())
    pins = [pipeline.pin_id("friday", shelf) for shelf in (None, pipeline.shelf(), elsewhere)]
    assert pins[:2] == ["savepoint/cards/friday"] * 2
    assert pins[2].startswith("savepoint/cards/friday@")


def test_the_checkpoint_knows_the_pipelines_name_without_its_function(tmp_path: Path) -> None:
    config = PipelineConfig(
        functions=("no:Function",), checkpoint=tmp_path, source={}, sinks={}, folder=tmp_path
    )
    Identity("cards", ["cards"], 4, ["orders"], {}).write(tmp_path)
    assert opened(config).name == "cards"


def test_savepoints_stay_where_they_are_when_a_rebuild_takes_the_place(tmp_path: Path) -> None:
    folders = ["checkpoint", "checkpoint.backfills/a", "checkpoint.backfills/a.backfills/b"]
    places = {
        OpenPipeline(PipelineConfig(("no:Function",), tmp_path / folder, {}, {})).savepoints
        for folder in folders
    }
    assert places == {(tmp_path / "savepoints").as_uri()}
