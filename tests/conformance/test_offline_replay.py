"""A log whose brokers are down, read by its catalog: exactly what its brokers gave before."""

import time

import psycopg
import pytest
from confluent_kafka import Producer

from catchwater.catalog.errors import CatalogUnavailable
from catchwater.clock import SYSTEM
from catchwater.log.read.offline import NoCatalog, opened
from catchwater.replay.control import Control, TransactionOpen
from catchwater.replay.offsets import HistoryLost
from catchwater.replay.options import parse_options
from catchwater.replay.plan import OffsetRange
from catchwater.replay.read import ReadSettings, read_task
from catchwater.replay.subscription import Subscription
from catchwater.wire.client import EARLIEST, Client

ROUNDS, COUNT = 5, 40
PATIENCE_S = 60.0


def write(broker):
    """Transactions, every second one aborted, over three partitions; the last one stays open."""
    with Client(broker.bootstrap) as client:
        client.create_topics({"t": 3, "other": 1})
    producer = Producer({
        "bootstrap.servers": broker.bootstrap,
        "transactional.id": "w",
        "transaction.timeout.ms": 600_000,  # what is left open stays so
    })  # fmt: skip
    producer.init_transactions(PATIENCE_S)
    for round_ in range(ROUNDS):
        producer.begin_transaction()
        for index in range(COUNT):
            producer.produce("t", b"%d/%d" % (round_, index), partition=index % 3)
        producer.flush(PATIENCE_S)
        (producer.abort_transaction if round_ % 2 else producer.commit_transaction)(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("t", b"open", partition=1)
    assert producer.flush(PATIENCE_S) == 0


def rows(options):
    """Where the query starts and ends, and what its tasks read, without Spark."""
    parsed = parse_options({"subscribe": "t", **options})
    subscription = Subscription(parsed)
    start, end = subscription.starting(EARLIEST), subscription.ending()
    tasks, control_url = subscription.tasks(start, end, 4), subscription.control_url()
    subscription.close()
    columns = ("partition", "offset", "timestamp", "key", "value")
    settings = ReadSettings(
        parsed.bootstrap, columns, control_url, parsed.read_committed, parsed.fail_on_data_loss
    )
    found = [
        row for task in tasks for rows in read_task(task, settings) for row in rows.to_pylist()
    ]
    return start, end, sorted(found, key=lambda row: (row["partition"], row["offset"]))


def await_packed(broker):
    """Until nothing of the topic lies in chunks."""
    deadline = time.monotonic() + PATIENCE_S
    control = Control(broker.control_url)
    while any(row["chunk_bytes"] for row in control.request("GET", "/api/v1/topics/t")["storage"]):
        assert time.monotonic() < deadline, broker.log()
        time.sleep(0.05)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
@pytest.mark.parametrize("is_packed", [True, False], ids=["segments", "chunks"])
def test_the_data_directory_of_a_stopped_broker_is_read(make_broker, isolation, is_packed):
    broker = make_broker({
        "catchwater.pack.interval.ms": "50" if is_packed else "3600000",
        "catchwater.pack.min.bytes": "1",
        "catchwater.pack.backlog.bytes": "1",
    })  # fmt: skip
    write(broker)
    if is_packed:
        await_packed(broker)
    given = {"kafka.isolation.level": isolation}
    by_fetch = rows(
        given | {"kafka.bootstrap.servers": broker.bootstrap, "catchwater.read": "kafka"}
    )
    broker.stop()
    offline = rows(given | {"catchwater.catalog": str(broker.data_dir)})
    assert offline == by_fetch
    whole = ROUNDS * COUNT + 1 if isolation == "read_uncommitted" else (ROUNDS // 2 + 1) * COUNT
    assert len(offline[2]) == whole


@pytest.mark.parametrize("wal", ["object", "postgres"])
def test_a_catalog_that_brokers_share_is_read(make_broker, postgres_url, tmp_path, wal):
    objects = (tmp_path / "objects").as_uri()
    broker = make_broker({
        "catchwater.catalog": postgres_url,
        "catchwater.objects": objects,
        "catchwater.wal": wal,
        "catchwater.pack.interval.ms": "50",
        "catchwater.pack.min.bytes": "1",
        "catchwater.pack.backlog.bytes": "1",
    })  # fmt: skip
    write(broker)
    await_packed(broker)
    given = {"kafka.isolation.level": "read_committed"}
    by_fetch = rows(
        given | {"kafka.bootstrap.servers": broker.bootstrap, "catchwater.read": "kafka"}
    )
    broker.stop()
    offline = given | {"catchwater.catalog": postgres_url, "catchwater.objects": objects}
    assert rows(offline) == by_fetch


def test_what_only_the_catalog_s_server_holds_is_named_as_missing(
    make_broker, postgres_url, tmp_path, caplog
):
    objects = (tmp_path / "objects").as_uri()
    broker = make_broker({
        "catchwater.catalog": postgres_url,
        "catchwater.objects": objects,
        "catchwater.wal": "postgres",
        "catchwater.pack.interval.ms": "3600000",
    })  # fmt: skip
    write(broker)
    broker.stop()
    given = {"catchwater.catalog": postgres_url, "catchwater.objects": objects}
    with pytest.raises(HistoryLost, match=r"without one does not hold: .*t-2 offsets 0 to "):
        rows(given)
    assert rows(given | {"failOnDataLoss": "false"})[2] == []
    assert "t-2 offsets 0 to " in caplog.text


def test_a_shared_catalog_is_not_made_or_upgraded_by_reading_it(postgres_url, tmp_path):
    objects = (tmp_path / "objects").as_uri()
    with (
        pytest.raises(CatalogUnavailable, match="read-only transaction"),
        opened(postgres_url, objects, SYSTEM),
    ):
        pass
    with psycopg.connect(postgres_url) as connection:
        tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'"
        assert connection.execute(tables).fetchone() == (0,)
    with pytest.raises(NoCatalog, match="where the objects lie"), opened(postgres_url, "", SYSTEM):
        pass


def test_plans_are_those_of_the_control_api(make_broker):
    broker = make_broker({"catchwater.pack.interval.ms": "3600000"})
    write(broker)
    wanted = [OffsetRange("t", partition, 5, 40) for partition in range(3)]
    committed = {"read_committed": True}
    plans = [Control(broker.control_url).plan(wanted, **kind) for kind in ({}, committed)]
    broker.stop()
    options = {"subscribe": "t", "catchwater.catalog": str(broker.data_dir / "catalog.db")}
    subscription = Subscription(parse_options(options))
    planner = subscription._planner()
    assert [planner.plan(wanted, **kind) for kind in ({}, committed)] == plans
    assert plans[1].aborted and plans[0].ranges
    with pytest.raises(TransactionOpen, match="a transaction is open since offset"):
        planner.plan([OffsetRange("t", 1, 0, subscription.latest()["t", 1])], read_committed=True)
