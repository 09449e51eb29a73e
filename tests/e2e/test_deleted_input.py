"""Backfills and rebuilds of input that the log has deleted, and that its topic's table has.

What comes out is what a plain loop over all of it gives, as if the log still held it: to the
offset, once, however often it is killed and whatever retention does meanwhile. Without Spark, as in
`test_rebuild_steps.py`, but for the last.
"""

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import KafkaException
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conftest import until
from tests.e2e.in_session import Pipeline
from tests.e2e.rebuild_steps import done, run
from tests.e2e.tally import PARTITIONS, TOPIC, Tables, model, newest, produce, write_file
from tests.e2e.test_backfill import COMMAND, kill_driver
from tests.s3 import CREDENTIALS, make_bucket
from tests.s3_signed import signed_proxy

from catchwater.clock import SYSTEM
from catchwater.pipeline.run import config
from catchwater.pipeline.run.backfill import BadBackfill, backfill_of, begin, begun, hold, resolve
from catchwater.replay.control import Control
from catchwater.replay.options import BadOption

pytestmark = pytest.mark.timeout(600)

DEADLINE_S = 60.0
NOTHING: Mapping[str, str] = {}
PAUSE = timedelta(milliseconds=5)
RECORDS, KEPT_FROM, EPOCH = 60, 35, 40
"""Orders of each partition, the first that the log still has, and offsets of an epoch."""


def named(label: str) -> dict[str, str]:
    """The environment that names the tables of a backfill: `LABEL`, `LABELs`."""
    return {
        "CATCHWATER_SINK__ROWS__TABLE": label,
        "CATCHWATER_SINK__NEWEST__TABLE": f"{label}s",
    }


class Input:
    """Orders of which the log has deleted the first."""

    def __init__(self, broker: Any, folder: Path, **settings: str) -> None:
        self.broker, self.folder = broker, folder
        self.control = Control(broker.control_url)
        self.admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        self.tables = Tables(folder / "rows.db")
        self.file = write_file(folder, broker.bootstrap, self.tables, EPOCH)
        config = {
            "catchwater.table": "lake.orders",
            "catchwater.table.commit.interval.ms": "100",
            "retention.ms": "-1",
            **settings,
        }
        topic = NewTopic(TOPIC, PARTITIONS, config=config)
        self.admin.create_topics([topic])[TOPIC].result(DEADLINE_S)

    def write(self, first: int, last: int) -> None:
        """Append orders, and wait for the table to have them, and to hold the log no more."""
        produce(self.broker.bootstrap, first, last)
        until(lambda: self._has(last), DEADLINE_S, self.broker.log)

    def _has(self, last: int) -> bool:
        [held] = [pin for pin in self.control.pins() if pin["id"] == f"table/{TOPIC}"] or [None]
        return bool(held) and all(each["offset"] == last for each in held["positions"])

    def delete(self, before: int) -> None:
        """Let the log delete what lies before an offset of each partition."""
        places = [Place(TOPIC, partition, before) for partition in range(PARTITIONS)]
        for deleted in self.admin.delete_records(places).values():
            deleted.result(DEADLINE_S)

    def backfill(
        self, label: str, since: str = "table", environment: Mapping[str, str] = NOTHING,
        **options: Any,
    ) -> int:  # fmt: skip
        """The command's exit code; -9 if it was killed."""
        environment = {**environment, **named(label)}
        return run("backfill", self.file, label, environment=environment, since=since, **options)

    def held(self) -> set[str]:
        """Who holds the log."""
        return {pin["owner"] for pin in self.control.pins()}


@pytest.fixture
def broker(make_broker: Callable[..., Any]) -> Any:
    return make_broker({"catchwater.pack.interval.ms": "100"})


@pytest.fixture
def orders(broker: Any, tmp_path: Path) -> Input:
    """The table has all of them."""
    made = Input(broker, tmp_path)
    made.write(0, RECORDS)
    made.delete(KEPT_FROM)
    return made


def places(at: int) -> str:
    return json.dumps({TOPIC: {str(partition): at for partition in range(PARTITIONS)}})


def test_a_backfill_that_is_killed_in_the_table_and_in_the_log_is_what_the_log_would_have_given(
    orders: Input,
) -> None:
    """Retention would go on meanwhile, and the log and its table grow."""
    assert orders.backfill("june", die_at=("write epoch 1", 1)) == -9
    assert done(orders.file)[-1] == "write epoch 1"
    with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
        orders.delete(RECORDS)
    orders.write(RECORDS, RECORDS + 20)
    assert orders.backfill("june", die_at=("write epoch 2", 1)) == -9
    assert orders.backfill("june") == 0
    assert orders.tables.rows("june") == model(0, RECORDS)
    assert orders.tables.rows("junes") == newest(model(0, RECORDS))
    assert orders.held() == {f"the table of {TOPIC}"}, "a backfill that is done holds nothing"
    # One record, at the end of what was deleted; and all that lies in the table alone.
    last = KEPT_FROM - 1
    assert orders.backfill("one", places(last), until=places(KEPT_FROM)) == 0
    assert orders.tables.rows("one") == model(last, KEPT_FROM)


def test_a_time_before_the_log_begins_is_looked_for_in_the_table(
    broker: Any, tmp_path: Path
) -> None:
    orders = Input(broker, tmp_path)
    times = []
    for first in (0, 20, 40):
        times.append(datetime.now(UTC).isoformat(timespec="milliseconds"))
        until(lambda: datetime.now(UTC).isoformat(timespec="milliseconds") > times[-1], DEADLINE_S)
        orders.write(first, first + 20)
        until(lambda: datetime.now(UTC) - datetime.fromisoformat(times[-1]) > PAUSE, DEADLINE_S)
    tally = config.load(orders.file, {})
    in_log = resolve(tally, times[1], times[2], SYSTEM)
    assert (in_log.start, in_log.end) == ({TOPIC: {"0": 20, "1": 20}}, {TOPIC: {"0": 40, "1": 40}})
    orders.delete(KEPT_FROM)
    assert resolve(tally, times[1], times[2], SYSTEM) == msgspec.structs.replace(
        in_log, log={TOPIC: {"0": KEPT_FROM, "1": KEPT_FROM}}
    )
    assert resolve(tally, times[0], times[1], SYSTEM).end == in_log.start
    assert resolve(tally, "1970-01-01T00:00:00Z", "latest", SYSTEM).start == {
        TOPIC: {"0": 0, "1": 0}
    }
    orders.delete(60)  # all that the log had
    assert resolve(tally, times[2], "latest", SYSTEM).start == in_log.end
    assert orders.backfill("may", times[1], until=times[2]) == 0
    assert orders.tables.rows("may") == model(20, 40)


def test_what_lies_in_a_bucket_is_read_by_who_has_no_key_of_it(
    make_broker: Callable[..., Any], tmp_path: Path, s3_server: str
) -> None:
    """The table's files lie at the server of the objects, which lets in what is signed alone."""
    with signed_proxy(s3_server) as proxy:
        url = make_bucket(s3_server, "deleted-input").replace(s3_server, proxy.endpoint)
        broker = make_broker({"catchwater.pack.interval.ms": "100", "catchwater.objects": url})
        orders = Input(broker, tmp_path)
        orders.write(0, RECORDS)
        orders.delete(KEPT_FROM)
        keyless = dict.fromkeys(CREDENTIALS, "")
        assert orders.backfill("june", environment=keyless, die_at=("write epoch 1", 1)) == -9
        ended = proxy.end_all()  # with all that is signed in this very second
        until(lambda: datetime.now(UTC) - ended > timedelta(seconds=1), DEADLINE_S)
        assert orders.backfill("june", environment=keyless) == 0
        broker.stop()
    assert orders.tables.rows("june") == model(0, RECORDS)
    assert orders.tables.rows("junes") == newest(model(0, RECORDS))
    signed = [path for _, path, _ in proxy.seen if "X-Amz-Signature" in path]
    assert any("/tables/lake/orders/data/" in path for path in signed)
    assert any("/segments/" in path for path in signed)


@pytest.mark.slow
def test_a_view_of_which_the_log_has_deleted_input_is_made_anew_whole(orders: Input) -> None:
    orders.file.write_text(orders.file.read_text().replace('"earliest"', '"latest"'))
    live = Pipeline(None, orders.folder, orders.file)
    live.run()
    assert not orders.tables.rows("live")
    assert run("rebuild", orders.file, "anew", die_at=("write epoch 1", 1)) == -9
    assert run("rebuild", orders.file, "anew", meanwhile=10) == 0
    assert orders.tables.rows("live") == model(0, RECORDS + 10)
    orders.write(RECORDS + 10, RECORDS + 20)
    live.run()
    assert orders.tables.rows("live") == model(0, RECORDS + 20)
    assert orders.held() == {"tally", f"the table of {TOPIC}"}


@pytest.mark.slow
def test_retention_goes_on_between_all_steps_of_a_backfill(
    orders: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it holds the log, the table has what goes; from then on nothing goes."""
    for name, value in named("june").items():
        monkeypatch.setenv(name, value)
    june = backfill_of(config.load(orders.file, os.environ), "june")
    bounds = resolve(june, places(3), "latest", SYSTEM)
    orders.delete(KEPT_FROM + 5)
    begin(june, hold(june, bounds, orders.control))
    refused = []

    def between(epoch: int) -> None:
        with pytest.raises(KafkaException, match="POLICY_VIOLATION"):
            orders.delete(KEPT_FROM + 6 + epoch)
        refused.append(epoch)

    Pipeline(None, orders.folder, orders.file, between, label="june").run()
    assert len(refused) > 2
    assert orders.tables.rows("june") == model(3, RECORDS)
    found = begun(june.checkpoint)
    assert found is not None
    assert found.from_tables == {(TOPIC, p): (3, KEPT_FROM + 5) for p in range(PARTITIONS)}


@pytest.mark.slow
def test_files_that_are_made_one_meanwhile_change_nothing(broker: Any, tmp_path: Path) -> None:
    """Twenty commits, a table partitioned by what is in no order, and one that is merged."""
    orders = Input(broker, tmp_path, **{"catchwater.table.partition.by": "bucket(3,offset)"})
    for n in range(20):
        orders.write(3 * n, 3 * n + 3)
    orders.delete(KEPT_FROM)
    assert orders.backfill("june") == 0
    assert orders.tables.rows("june") == model(0, RECORDS)


@pytest.mark.slow
def test_what_is_in_neither_is_named_before_anything_is_begun(
    orders: Input,
) -> None:
    """A gap of the table, a table that is behind, and one that is gone."""
    from tests.conformance.test_tables import alter, load

    tally = config.load(orders.file, {})
    alter(orders.broker, TOPIC, **{"catchwater.table": ""})
    until(lambda: not orders.held(), DEADLINE_S, orders.broker.log)
    produce(orders.broker.bootstrap, RECORDS, RECORDS + 20)
    orders.delete(RECORDS + 10)
    everything = places(0)
    gone = "orders-0 offsets 0 to 69; orders-1 offsets 0 to 69"
    with pytest.raises(BadBackfill, match=f"The log does not hold: {gone}"):
        resolve(tally, everything, "latest", SYSTEM)
    assert resolve(tally, "table", "latest", SYSTEM).start == {TOPIC: {"0": 70, "1": 70}}

    alter(orders.broker, TOPIC, **{"catchwater.table": "lake.orders"})
    orders.write(RECORDS + 20, RECORDS + 21)
    status = orders.control.request("GET", f"/api/v1/topics/{TOPIC}/table")
    assert sorted(status["gaps"]) == [[p, RECORDS, RECORDS + 10] for p in range(PARTITIONS)]
    with pytest.raises(BadBackfill, match="offsets 0 to 69"):
        resolve(tally, everything, "latest", SYSTEM)
    orders.delete(RECORDS + 15)
    assert resolve(tally, "table", "latest", SYSTEM).from_tables[TOPIC, 0] == (70, 75)
    with pytest.raises(BadBackfill, match="orders-0 offsets 0 to 69") as lost:
        resolve(tally, everything, "latest", SYSTEM)
    assert "Choose a later start" in str(lost.value.hint)

    load(orders.broker, TOPIC).delete("offset = 72")
    with pytest.raises(BadBackfill, match="not stand in for: orders-0 offsets 70 to 74") as lost:
        resolve(tally, places(70), "latest", SYSTEM)
    assert "Rows of lake.orders were deleted or added by somebody else." in str(lost.value.hint)
    with pytest.raises(BadOption, match="orders cannot be read from where its table begins"):
        resolve(tally, "table", "latest", SYSTEM)
    load(orders.broker, TOPIC).catalog.drop_table(f"lake.{TOPIC}")
    with pytest.raises(BadBackfill, match="offsets 70 to 74"):
        resolve(tally, places(70), "latest", SYSTEM)


@pytest.mark.slow
def test_a_table_of_fields_stands_in_for_no_log(broker: Any, tmp_path: Path) -> None:
    typed = {
        "catchwater.history.value.format": "json",
        "catchwater.history.value.schema": "card string, n long, at long",
    }
    orders = Input(broker, tmp_path, **typed)
    orders.write(0, RECORDS)
    orders.delete(KEPT_FROM)
    tally = config.load(orders.file, {})
    with pytest.raises(BadBackfill, match="has only as fields: orders-0 offsets 0 to 34") as lost:
        resolve(tally, "table", "latest", SYSTEM)
    assert "catchwater.history.value.format" in str(lost.value.hint)
    Pipeline(None, orders.folder, orders.file).run()
    orders.tables.damage()
    assert run("rebuild", orders.file, "anew") == 0
    assert orders.tables.rows("live") == model(KEPT_FROM, RECORDS)


@pytest.mark.slow
def test_a_table_of_fields_and_bytes_does(broker: Any, tmp_path: Path) -> None:
    """Though its schema knows nothing of one field that the function is given."""
    typed = {
        "catchwater.history.value.format": "json",
        "catchwater.history.value.schema": "card string, n double",
        "catchwater.table.value.bytes": "true",
    }
    orders = Input(broker, tmp_path, **typed)
    orders.write(0, RECORDS)
    orders.delete(KEPT_FROM)
    assert orders.backfill("june") == 0
    assert orders.tables.rows("june") == model(0, RECORDS)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_reads_it_too_and_goes_on_after_kill_9(orders: Input) -> None:
    command = [COMMAND, "pipeline", "backfill", str(orders.file), "--label", "june", "--yes",
               "--quick", "--json", "--from", "table"]  # fmt: skip
    with (
        (orders.folder / "log").open("wb") as log,
        subprocess.Popen(
            command, env={**os.environ, **named("june")}, stdout=subprocess.PIPE, stderr=log
        ) as process,
    ):
        kill_driver(orders.folder / "checkpoint.backfills" / "june")
        out, _ = process.communicate(timeout=600)
    told = (orders.folder / "log").read_text()
    assert process.returncode == 0, told[-3000:]
    assert f"orders-1 offsets 0 to {KEPT_FROM} from the topic's table" in told
    assert json.loads(out)["read"] == PARTITIONS * RECORDS
    kept = orders.folder / "checkpoint.backfills" / "june" / "catchwater" / "supervisor.json"
    assert json.loads(kept.read_text())["restarts"] == 1, "it was killed on its way"
    assert orders.tables.rows("june") == model(0, RECORDS)
