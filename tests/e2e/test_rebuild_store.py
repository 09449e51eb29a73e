"""A key-value store over HTTP is made anew from history, and killed on the way.

Without Spark, in a process of its own (`rebuild_steps`). Until the rebuild takes its place the
store is sent nothing of it.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.kv_server import KeyValueServer, key_value_server
from tests.e2e.in_session import Pipeline
from tests.e2e.rebuild_steps import done, run
from tests.e2e.tally import FUNCTION, PARTITIONS, TOPIC, model, newest, produce, produced
from typer.testing import CliRunner

from catchwater.cli import app
from catchwater.pipeline.change.rebuild import CannotRebuild
from catchwater.pipeline.run import config
from catchwater.recovery.handover import HandedOver
from catchwater.wire.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

RECORDS, MORE = 60, 10
FILE = """\
[pipeline]
function = "{module}:Tallied"
checkpoint = "checkpoint"
trigger = "available-now"
shards = 2
[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "orders"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 60
[sink.store]
kind = "http"
url = "{url}/{path}"
retry = "1s"
"""
WRONG = FUNCTION.replace("Row(e.card, e.n, s.seen)", 'Row("of-" + e.card, e.n, -s.seen)')
"""Counts wrongly, and under keys that there should not be."""


class Store:
    """The pipeline, stopped, with all its input read by a version with a bug, and its store."""

    def __init__(self, broker: Any, folder: Path, server: KeyValueServer) -> None:
        self.bootstrap, self.folder, self.server = broker.bootstrap, folder, server
        with Client(broker.bootstrap) as client:
            client.create_topics({TOPIC: PARTITIONS})
        produce(broker.bootstrap, 0, RECORDS)
        for module, code in (("orders_wrong", WRONG), ("orders_seen", FUNCTION)):
            (folder / f"{module}_{id(self)}.py").write_text(code)
        self.file = self.write("orders_wrong", "orders/{id}")
        self.live = Pipeline(None, folder, self.file)
        self.live.run()
        assert all(key.startswith("of-") for key in self.content())
        self.write("orders_seen", "orders/{id}")

    def write(self, module: str, path: str) -> Path:
        """The pipeline's file: whose function it names, and where it sends to."""
        file = self.folder / "tally.toml"
        name, url = f"{module}_{id(self)}", self.server.url
        text = FILE.format(module=name, bootstrap=self.bootstrap, url=url, path=path)
        file.write_text(text)
        return file

    def content(self) -> dict[str, Any]:
        """Key → what the store has under it."""
        with self.server.lock:
            found = dict(self.server.content)
        return {path.rpartition("/")[2]: json.loads(body) for path, body in found.items()}

    def expected(self, end: int) -> dict[str, Any]:
        """What a plain loop over so many orders of each partition gives."""
        return {c: {"card": c, "n": n, "seen": s} for c, n, s in newest(model(0, end))}


@pytest.fixture
def server() -> Iterator[KeyValueServer]:
    with key_value_server() as server:
        yield server


@pytest.fixture
def store(make_broker: Callable[..., Any], tmp_path: Path, server: KeyValueServer) -> Store:
    return Store(make_broker({"log.retention.ms": "-1"}), tmp_path, server)


def test_a_store_gets_the_newest_of_every_key_and_loses_what_should_not_be_there(
    store: Store,
) -> None:
    wrong, requests = store.content(), len(store.server.requests)
    # Killed when it has caught up: nothing was sent, and the store is as it was.
    assert run("rebuild", store.file, "anew", die_at=("catch up", 1), meanwhile=MORE) == -9
    assert store.content() == wrong and len(store.server.requests) == requests
    # Refused in the middle of what it sends: the old checkpoint cannot start any more.
    store.server.faults = [403]
    assert run("rebuild", store.file, "anew") != 0
    assert done(store.file)[-1] == "fence the pipeline"
    with pytest.raises(HandedOver, match="has begun to take the place"):
        store.live.run()
    # Killed when all was sent, and done again.
    assert run("rebuild", store.file, "anew", die_at=("take the identity", 1)) == -9
    assert run("rebuild", store.file, "anew") == 0

    end = produced(store.bootstrap)
    assert end == RECORDS + MORE
    assert store.content() == store.expected(end)
    folder = config.load(store.file, {}).checkpoint
    assert folder.name == "anew", "the pipeline goes on from the rebuild's checkpoint"
    produce(store.bootstrap, end, end + MORE)
    store.live.run()
    assert store.content() == store.expected(end + MORE)
    keys = [key for method, _, key in store.server.requests if method == "PUT"]
    live = {key for key in keys if key and key.startswith('"tally/')}
    assert {key.split("/")[2] for key in live} == {"0", "1"}, "no key of a request comes again"
    verified = CliRunner().invoke(app, ["sink", "verify", str(store.file)])
    assert verified.exit_code == 0, verified.output


def test_what_keeps_every_output_is_refused(store: Store) -> None:
    store.write("orders_seen", "orders/{row}")
    answer = CliRunner().invoke(app, ["pipeline", "rebuild", str(store.file), "--label", "anew"])
    assert isinstance(answer.exception, CannotRebuild)
    assert "'store' (http)" in str(answer.exception)
