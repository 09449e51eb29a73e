"""Brokers of an older version and of this one side by side on one catalog, as in an upgrade.

`tests/golden/code/<day>.tar.xz` has what a broker of that day is made of. It begins alone; this
version's broker comes beside it and brings the tables up to date under its feet; both serve; it is
stopped, may not come back, and this version's takes its place. Nothing acknowledged is lost or
there twice, and what one did the other knows.
"""

import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.cluster import Brokers, ask
from tests.conftest import BrokerProcess, until
from tests.e2e.test_many_brokers import PATIENCE_S, Load, create, read_all

from catchwater.catalog.db import migrations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ARCHIVES = sorted((Path(__file__).parent.parent / "golden" / "code").glob("*.tar.xz"))
OLD, NEW = 1, 2
TRANSACTIONS, GROUP = "transactions", "readers-of-both"
_MAIN = "import sys; del sys.argv[1]; from catchwater.cli.app import main; main()"
"""A wrapper's first argument is the command of this version, which it leaves out."""


class Round:
    """An upgrade of two brokers, one after the other."""

    def __init__(self, home: Path, catalog: str, code: Path) -> None:
        self.catalog = catalog
        self.brokers = Brokers(home, catalog, {}, zones=("a", "b"))
        self.old, self.new = self.brokers.all[OLD], self.brokers.all[NEW]
        self._older = ("env", f"PYTHONPATH={code}", sys.executable, "-c", _MAIN)
        self.written: dict[str, dict[str, tuple[int, int]]] = {}
        """Topic → every record that was acknowledged."""
        self.transactions: set[str] = set()

    def start_old(self) -> None:
        self.old.start(*self._older)

    def spawn_old(self) -> None:
        self.old.spawn(*self._older)

    def schema(self) -> int:
        with psycopg.connect(self.catalog) as connection:
            ((version,),) = connection.execute("SELECT version FROM schema_version").fetchall()
        return int(version)

    def use(self, *brokers: BrokerProcess) -> None:
        """A topic, records and a position through these, transactions through each."""
        name = f"t{len(self.written)}"
        bootstrap = ",".join(each.bootstrap for each in brokers)
        create(bootstrap, name)
        with Load(bootstrap, name) as load:
            pass
        assert not load.errors
        self.written[name] = load.acknowledged
        for broker in brokers:
            self._transact(broker)
            self._commit(broker, len(self.transactions))

    def _transact(self, broker: BrokerProcess) -> None:
        """A transaction that is aborted, and one that is committed, of one transactional id."""
        if not self.transactions:
            create(broker.bootstrap, TRANSACTIONS)
        settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": "mixed"}
        producer = Producer(settings)
        producer.init_transactions(PATIENCE_S)
        name = f"transaction {len(self.transactions)}"
        producer.begin_transaction()
        producer.produce(TRANSACTIONS, f"{name}, aborted", partition=0)
        producer.flush(PATIENCE_S)
        producer.abort_transaction(PATIENCE_S)
        producer.begin_transaction()
        producer.produce(TRANSACTIONS, name, partition=1)
        producer.commit_transaction(PATIENCE_S)
        self.transactions.add(name)

    def _commit(self, broker: BrokerProcess, offset: int) -> None:
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
        reader.commit(offsets=[TopicPartition(TRANSACTIONS, 1, offset)], asynchronous=False)
        reader.close()

    def check(self, broker: BrokerProcess) -> None:
        """What it serves: every acknowledged record once, at its place, and nothing aborted."""
        for topic, written in self.written.items():
            assert read_all(broker.bootstrap, topic) == written
        assert read_all(broker.bootstrap, TRANSACTIONS).keys() == self.transactions
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": GROUP})
        (found,) = reader.committed([TopicPartition(TRANSACTIONS, 1)], timeout=PATIENCE_S)
        reader.close()
        assert found.offset == len(self.transactions)


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.split(".")[0])
def upgrade(request: pytest.FixtureRequest, postgres_url: str, tmp_path: Path) -> Iterator[Round]:
    with tarfile.open(request.param) as archive:
        archive.extractall(tmp_path / "code", filter="data")
    made = Round(tmp_path / "cluster", postgres_url, tmp_path / "code")
    yield made
    made.brokers.close()


def test_brokers_are_upgraded_one_after_the_other(upgrade: Round) -> None:
    upgrade.start_old()
    before = upgrade.schema()
    upgrade.use(upgrade.old)
    upgrade.check(upgrade.old)

    # This version's broker comes beside it, and brings the tables up to date.
    upgrade.new.start()
    assert upgrade.schema() == len(migrations("postgres")) >= before
    for broker in (upgrade.old, upgrade.new):
        until(lambda b=broker: len(ask(b, "/api/v1/cluster")[1]["brokers"]) == 2, PATIENCE_S)
        upgrade.check(broker)
    upgrade.use(upgrade.old, upgrade.new)
    upgrade.use(upgrade.new)
    upgrade.use(upgrade.old)
    for broker in (upgrade.old, upgrade.new):
        upgrade.check(broker)

    # The old one goes while it is written to, and may not come back.
    topic = "handed-over"
    create(upgrade.new.bootstrap, topic)
    with Load(upgrade.brokers.bootstrap, topic) as load:
        upgrade.old.stop()
    assert not load.errors
    upgrade.written[topic] = load.acknowledged
    if upgrade.schema() > before:
        upgrade.spawn_old()
        until(lambda: not upgrade.old.is_running, PATIENCE_S, upgrade.old.log)
        refused = f"has schema version {upgrade.schema()}; this release knows up to {before}"
        assert refused in upgrade.old.log()

    # This version's takes its place.
    upgrade.old.start()
    for broker in (upgrade.old, upgrade.new):
        upgrade.check(broker)
    upgrade.use(upgrade.old, upgrade.new)
    upgrade.check(upgrade.old)
    assert "Traceback" not in upgrade.brokers.log()


def test_one_that_is_killed_among_the_others_version_takes_nothing_with_it(
    upgrade: Round,
) -> None:
    upgrade.start_old()
    upgrade.new.start()
    upgrade.use(upgrade.old, upgrade.new)
    topic = "killed"
    create(upgrade.new.bootstrap, topic)
    with Load(upgrade.brokers.bootstrap, topic) as load:
        upgrade.old.kill()
    assert not load.errors
    upgrade.written[topic] = load.acknowledged
    upgrade.check(upgrade.new)
