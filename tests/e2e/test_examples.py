"""Every example on real Spark gives what its harness gives, with its Python workers killed."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from examples import (
    audit_trail,
    derived_signal,
    enrichment,
    feature_store,
    fraud_routing,
    search_document,
)
from tests.conformance.kv_server import KeyValueServer, key_value_server
from tests.e2e.conftest import PATIENCE_S, python_workers
from tests.e2e.test_operators import values_of

from catchwater.drill.feeder import Event, Feeder
from catchwater.drill.rows import canonical
from catchwater.testing import Harness
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parent.parent.parent
COMMAND = str(Path(sys.executable).with_name("catchwater"))
PARTITIONS = 2
EVENTS = 300
MINUTE_MS = 60_000

Feed = Callable[..., None]
Run = Callable[..., None]


@pytest.fixture
def feed(broker: Any) -> Feed:
    """`feed("payments", "card", events)`: events as JSON, keyed by a field."""

    def feed(topic: str, key: str, events: Sequence[Any]) -> None:
        with Client(broker.bootstrap) as client:
            client.create_topics({topic: PARTITIONS}, {"retention.ms": "-1"})
            encoded = (
                Event(str(getattr(e, key)).encode(), msgspec.json.encode(e), 0) for e in events
            )
            Feeder(client, topic, PARTITIONS, 50).feed(encoded, len(events))

    return feed


@pytest.fixture
def run(broker: Any, tmp_path: Path) -> Run:
    """`run("enrichment")`: the example until its input is done, from and to other places."""

    def run(name: str, *, url: str = "", subscribe: str | None = None) -> None:
        shutil.copy(ROOT / "examples" / f"{name}.py", tmp_path)
        text = (ROOT / "examples" / f"{name}.toml").read_text()
        for wanted in ("http://127.0.0.1:8500", "http://127.0.0.1:9200", "s3://audit/trail"):
            text = text.replace(wanted, url)
        file = tmp_path / f"{name}.toml"
        file.write_text(text)
        settings = {
            "CATCHWATER_SOURCE__KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap,
            "CATCHWATER_PIPELINE__LOCAL": "local",
        }
        if subscribe:
            settings["CATCHWATER_SOURCE__SUBSCRIBE"] = subscribe
        told = tmp_path / "driver.log"
        with told.open("wb") as log:
            process = subprocess.Popen(
                [COMMAND, "pipeline", "run", str(file), "--available-now", "--quick",
                 "--no-supervise"],
                env=os.environ | settings, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            kill_workers(process, tmp_path)
            assert process.wait(PATIENCE_S) == 0, told.read_text()[-3000:]
        finally:
            process.kill()
            process.wait()

    return run


def kill_workers(process: "subprocess.Popen[bytes]", folder: Path) -> None:
    """kill -9 of what runs the function, once an epoch, as soon as that is planned; to the end."""
    deadline, seen = time.monotonic() + 3 * PATIENCE_S, 0
    while process.poll() is None:
        assert time.monotonic() < deadline
        planned = len(list(folder.glob("checkpoint/*/offsets/[0-9]*")))
        if planned > seen:
            seen = planned
            for worker in python_workers(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        time.sleep(0.002)


@pytest.fixture
def store() -> Iterator[KeyValueServer]:
    with key_value_server() as server:
        yield server


def rows(broker: Any, topic: str) -> Counter[bytes]:
    values = [value for part in values_of(broker.bootstrap, topic) for value in part]
    return Counter(canonical(msgspec.json.decode(value)) for value in values)


def counted(outputs: Sequence[Any]) -> Counter[bytes]:
    return Counter(canonical(msgspec.to_builtins(output)) for output in outputs)


def times(seed: int, step_ms: int) -> Iterator[tuple[random.Random, str, int]]:
    """Numbered ids and times in order, and something to draw from."""
    draw = random.Random(seed)
    for number in range(EVENTS):
        yield draw, str(number), MINUTE_MS + number * step_ms


def test_enrichment(feed: Feed, run: Run, broker: Any) -> None:
    payments = [
        enrichment.Payment(f"c{d.randrange(9)}", i, at, f"m{d.randrange(9)}", 100)
        for d, i, at in times(1, 2_000)
    ]
    merchants = {f"m{n}": enrichment.Merchant(f"M{n}", "shop", "NL") for n in range(7)}
    with Client(broker.bootstrap) as client:
        client.create_topics({"merchants": 1}, {"cleanup.policy": "compact"})
        table = (Event(m.encode(), msgspec.json.encode(row), 0) for m, row in merchants.items())
        Feeder(client, "merchants", 1, 10).feed(table, len(merchants))
    feed("payments", "card", payments)
    run("enrichment")
    h = Harness(enrichment.CompletePayments)
    h.table("merchants", merchants)
    assert rows(broker, "complete-payments") == counted(h.send(*payments))


def test_derived_signal(feed: Feed, run: Run, broker: Any) -> None:
    clicks = [
        derived_signal.Click(
            f"u{d.randrange(40)}", i, at, d.choice(("look", "add", "add", "empty", "pay"))
        )
        for d, i, at in times(2, 20_000)
    ]
    feed("clicks", "customer", clicks)
    run("derived_signal")
    expected = Harness(derived_signal.Carts).send(*clicks)
    assert {signal.kind for signal in expected} == {"paid", "abandoned"}
    assert rows(broker, "cart-signals") == counted(expected)


def test_fraud_routing(feed: Feed, run: Run, broker: Any) -> None:
    payments = [
        fraud_routing.Payment(
            f"c{d.randrange(20)}", i, at, d.choice(("NL", "NL", "PT")), d.choice((100, 110, 9_000))
        )
        for d, i, at in times(3, 600_000)
    ]
    free = asdict(payments[0]) | {"id": "free", "cents": 0}
    feed("payments-routed", "card", payments)
    with Client(broker.bootstrap) as client:
        bad = iter([Event(b"c1", msgspec.json.encode(free), 0)])
        Feeder(client, "payments-routed", PARTITIONS, 1).feed(bad, 1)
    run("fraud_routing", subscribe="payments-routed")
    scores = Harness(fraud_routing.CardScore).send(*payments)
    cases = Harness(fraud_routing.ReviewDesk).send(*scores)
    assert cases and not any(case.declined for case in cases)
    assert rows(broker, "scores") == counted(scores)
    assert rows(broker, "cases") == counted(cases)
    assert rows(broker, "not-payments") == counted([free])


def test_feature_store(feed: Feed, run: Run, store: KeyValueServer) -> None:
    payments = [
        feature_store.Payment(f"c{d.randrange(9)}", i, at, f"m{d.randrange(9)}", d.randrange(900))
        for d, i, at in times(4, 30_000)
    ]
    feed("payments-of-features", "card", payments)
    run("feature_store", url=store.url, subscribe="payments-of-features")
    expected = {e.card: e for e in Harness(feature_store.CardFeaturesOfTheHour).send(*payments)}
    assert counted(list(expected.values())) == Counter(
        canonical(msgspec.json.decode(body)) for body in store.content.values()
    )


def test_search_document(feed: Feed, run: Run, store: KeyValueServer) -> None:
    products, prices, stock = [], [], []
    for d, i, at in times(5, 1_000):
        sku = f"s{d.randrange(30)}"
        products.append(search_document.Product(sku, at, f"Title {i}", ""))
        prices.append(search_document.Price(sku, at, d.randrange(900)))
        stock.append(search_document.Stock(sku, at, d.choice(("north", "south")), d.randrange(2)))
    feed("products", "sku", products)
    feed("prices", "sku", prices)
    feed("stock", "sku", stock)
    run("search_document", url=store.url)
    documents = Harness(search_document.ProductDocuments).send(*products, *prices, *stock)
    expected = {document.sku: document for document in documents}
    assert counted(list(expected.values())) == Counter(
        canonical(msgspec.json.decode(body)) for body in store.content.values()
    )
    assert all(key for _, _, key in store.requests)


def test_audit_trail(feed: Feed, run: Run, broker: Any, tmp_path: Path) -> None:
    changes = [
        audit_trail.Change(f"a{d.randrange(9)}", i, at, "ada", d.choice(("open", "close")))
        for d, i, at in times(6, 1_000)
    ]
    feed("account-changes", "account", [*changes, *changes[:50]])
    archive = tmp_path / "archive"
    run("audit_trail", url=archive.as_uri())
    expected = counted(Harness(audit_trail.AuditTrail).send(*changes))
    assert rows(broker, "audit-trail") == expected
    kept = [row for path in archive.rglob("*.parquet") for row in pq.read_table(path).to_pylist()]
    fields = list(audit_trail.Entry.__dataclass_fields__)
    assert Counter(canonical({f: row[f] for f in fields}) for row in kept) == expected
