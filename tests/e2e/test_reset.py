"""A pipeline is reset to another place of its input: empty state, the same sinks, nothing unsaid.

Without Spark, whose part is none here.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.e2e import in_session
from tests.e2e.tally import (
    PARTITIONS,
    TOPIC,
    Row,
    Tables,
    model,
    newest,
    produce,
    produced,
    write_file,
)
from typer.testing import CliRunner

from catchwater.cli import app
from catchwater.config import CatchwaterError
from catchwater.pipeline.change import reset
from catchwater.recovery import checkpoint, handover, rewind
from catchwater.recovery.checkpoint import NoSuchCheckpoint
from catchwater.recovery.contract import HistoryGone, LogBehind
from catchwater.recovery.handover import RestoreUnfinished
from catchwater.replay.control import Control
from catchwater.wire.client import Client

pytestmark = pytest.mark.timeout(600)

FIRST = 40
"""Orders in each partition before any test."""


class Killed(BaseException):
    """Nothing that runs here can catch it."""


class Life:
    """The pipeline, its tables, and the commands."""

    def __init__(self, folder: Path, broker: Any) -> None:
        folder.mkdir()
        self.folder, self.bootstrap = folder, broker.bootstrap
        self.control = Control(broker.control_url)
        self.tables = Tables(folder / "rows.db")
        self.file = write_file(folder, broker.bootstrap, self.tables, 20)
        text = self.file.read_text().replace("[source]", f'name = "{folder.name}"\n[source]')
        self.file.write_text(text)

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def run(self) -> None:
        in_session.Pipeline(None, self.folder, self.file).run()

    def command(self, *words: str) -> Any:
        done = CliRunner().invoke(app, [*words[:2], str(self.file), *words[2:]])
        if isinstance(done.exception, CatchwaterError):
            raise done.exception
        assert done.exit_code == 0, (done.output, done.exception)
        return done

    def reset(self, *words: str) -> Any:
        return json.loads(self.command("recovery", "reset", "--json", *words).stdout)


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., Any]) -> Any:
    """Each partition has as many orders as are read before; tests share them."""
    broker = make_broker({"log.retention.ms": "-1"})
    with Client(broker.bootstrap) as client:
        client.create_topics({TOPIC: PARTITIONS})
    produce(broker.bootstrap, 0, FIRST)
    return broker


@pytest.fixture
def life(broker: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Life:
    name = "".join(each if each.isalnum() else "-" for each in request.node.name[-40:]).strip("-")
    life = Life(tmp_path / name.lower(), broker)
    life.run()
    return life


def end(life: Life) -> int:
    """How many orders each partition holds by now: tests share the topic."""
    return produced(life.bootstrap)


def once_more(first: int, last: int, again: int, until: int) -> Counter[Row]:
    """Rows of what was read first, and of what was read with empty state from another place on."""
    return model(first, last) + model(again, until)


@pytest.mark.slow
def test_it_is_only_shown_until_it_is_asked_for(life: Life) -> None:
    last = end(life)
    before = sorted(path for path in life.checkpoint.rglob("*") if path.is_file())
    told = life.reset("--to", "10")
    assert (told["done"], told["savepoint"]) == (False, None)
    assert (told["again"], told["skipped"]) == (PARTITIONS * (last - 10), 0)
    assert told["partitions"][1] == {
        "topic": TOPIC, "partition": 1, "log_start": 0, "at": last, "to": 10, "end": last,
        "again": last - 10, "skipped": 0,
    }  # fmt: skip
    assert told["state"]["keys"] == 34 and told["state"]["bytes"] > 0
    assert told["sinks"] == {
        "rows": "keeps what it has; outputs that are made again are added to them",
        "newest": "keeps what it has; outputs that are made again replace those of the same "
        "output_id",
    }
    shown = life.command("recovery", "reset", "--to", "latest").output
    assert "34 keys" in shown and "it begins empty" in shown and "--execute does it" in shown
    assert sorted(path for path in life.checkpoint.rglob("*") if path.is_file()) == before


def test_it_begins_anew_with_empty_state_and_goes_on_with_the_same_sinks(life: Life) -> None:
    last = end(life)
    epoch = checkpoint.last_commit(life.checkpoint)
    told = life.reset("--to", "10", "--execute")
    assert told["done"] and told["epoch"] == epoch
    now = json.loads(life.command("recovery", "explain", "--json").stdout)["now"]
    assert (now["epoch"], now["records"], now["keys"]) == (epoch, 0, 0)
    assert {each["words"] for each in now["sinks"]} == {
        f"has every output of these inputs, up to epoch {epoch}"
    }
    pins = {pin["id"]: pin for pin in life.control.pins()}
    (held,) = (pin for name, pin in pins.items() if name.startswith(f"{life.folder.name}/"))
    assert {each["offset"] for each in held["positions"]} == {10}

    life.run()
    assert life.tables.rows("live") == once_more(0, last, 10, last)
    assert life.tables.rows("newest") == newest(model(10, last)) + Counter(
        row for row in newest(model(0, last)) if row[0] not in {r[0] for r in model(10, last)}
    )
    life.command("sink", "verify")

    # And back to what was before: state, and what the sinks had.
    name = told["savepoint"].rpartition("/")[2]
    life.file.write_text(life.file.read_text().replace('"checkpoint"', '"again"'))
    life.command("savepoint", "restore", name, "--yes")
    life.run()
    assert life.tables.rows("live") == model(0, last)


@pytest.mark.slow
def test_what_lies_between_is_never_read_where_it_goes_forward(life: Life) -> None:
    last = end(life)
    produce(life.bootstrap, last, last + 5)
    told = life.reset("--to", "latest", "--execute", "--no-savepoint")
    assert (told["again"], told["skipped"], told["savepoint"]) == (0, 5 * PARTITIONS, None)
    life.run()
    assert life.tables.rows("live") == model(0, last)
    produce(life.bootstrap, last + 5, last + 8)
    life.run()
    assert life.tables.rows("live") == once_more(0, last, last + 5, last + 8)


@pytest.mark.slow
def test_a_time_offsets_and_a_checkpoint_name_a_place(life: Life) -> None:
    last = end(life)
    assert life.reset("--to", "1970-01-02T00:00:00Z")["partitions"][0]["to"] == 0
    each = json.dumps({TOPIC: {"0": 7, "1": 9}})
    assert [move["to"] for move in life.reset("--to", each)["partitions"]] == [7, 9]
    assert life.reset("--to", "earliest")["again"] == PARTITIONS * last
    found = checkpoint.read(life.checkpoint).committed[0]
    told = life.reset("--checkpoint", str(found.epoch))
    assert [m["to"] for m in told["partitions"]] == [*found.end.offsets[TOPIC].values()]
    with pytest.raises(NoSuchCheckpoint):
        life.reset("--checkpoint", "1000")


@pytest.mark.slow
def test_a_place_that_the_log_does_not_hold_is_refused_with_every_range(life: Life) -> None:
    last = end(life)
    with pytest.raises(LogBehind) as beyond:
        life.reset("--to", str(last + 1), "--execute")
    assert beyond.value.exit_code == 5
    for partition in range(PARTITIONS):
        assert f"of {TOPIC}-{partition}, and the log ends at offset {last}" in str(beyond.value)
    assert handover.work_of(life.checkpoint) is handover.Work.WHOLE


@pytest.mark.slow
def test_what_was_deleted_is_named(make_broker: Callable[..., Any], tmp_path: Path) -> None:
    own = make_broker({"log.retention.ms": "-1"})
    with Client(own.bootstrap) as client:
        client.create_topics({TOPIC: PARTITIONS})
    produce(own.bootstrap, 0, FIRST)
    life = Life(tmp_path / "gone", own)
    life.run()
    for pin in life.control.pins():
        life.control.release_pin(str(pin["id"]))
    before = [TopicPartition(TOPIC, partition, 12) for partition in range(PARTITIONS)]
    admin = AdminClient({"bootstrap.servers": own.bootstrap})
    for answer in admin.delete_records(before).values():
        answer.result(60)
    with pytest.raises(HistoryGone) as gone:
        life.reset("--to", "10", "--execute")
    assert gone.value.exit_code == 5 and "2 records are gone" in str(gone.value)
    assert f"{TOPIC}-0 from offset 10" in str(gone.value) and f"{TOPIC}-1" in str(gone.value)
    told = life.reset("--to", "earliest")
    assert told["partitions"][0]["to"] == told["partitions"][0]["log_start"] == 12


def dying(original: Any, steps: Iterator[int], last: int) -> Any:
    """The same, but that nothing comes behind the last step of all."""

    def step(*arguments: Any, **more: Any) -> Any:
        done = original(*arguments, **more)
        if next(steps) == last:
            raise Killed
        return done

    return step


@pytest.mark.slow
def test_cut_short_anywhere_nothing_runs_before_the_same_command_has_ended_it(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = end(life)
    life.reset("--to", "0", "--execute")  # there is little to move in what follows
    life.run()
    seen = life.tables.rows("live")
    owners = [
        (rewind, "move"), (rewind, "write_epoch"), (handover, "end_restore"),
        (reset, "_take_back_unfinished"), (reset, "_emptied"), (Control, "set_pin"),
    ]  # fmt: skip
    for step in range(1, 60):
        left = iter(range(1, 1000))
        with monkeypatch.context() as patch:
            for owner, name in owners:
                patch.setattr(owner, name, dying(getattr(owner, name), left, step))
            try:
                life.reset("--to", "10", "--execute", "--no-savepoint")
            except Killed:
                pass
            else:
                break
        if handover.work_of(life.checkpoint) is handover.Work.RESTORING:
            with pytest.raises(RestoreUnfinished, match=r"recovery reset .* --to 10 --execute"):
                life.run()
    assert step > 8, step
    life.run()
    assert life.tables.rows("live") == seen + model(10, last)
