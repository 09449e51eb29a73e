"""Files and tables on an S3 that fails: requests refused, cut short, applied unanswered."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog
from tests.conformance.sink_targets import Alert, record
from tests.s3_faults import FaultyProxy, faulty_proxy

from catchwater.clock import SYSTEM
from catchwater.objects.base import StoreRefused
from catchwater.objects.open import open_store
from catchwater.sinks import reconcile
from catchwater.sinks.base import Sink, SinkUnavailable
from catchwater.sinks.config import SinkContext, open_sink, parse

EPOCHS = 6
ROWS = 20
FAULTS = {"500": 0.05, "503": 0.05, "reset": 0.05, "lost": 0.1, "truncated": 0.05}


@pytest.fixture
def proxy(s3_server: str) -> Iterator[FaultyProxy]:
    with faulty_proxy(s3_server, seed=3) as proxy:
        yield proxy


def opened(root: Path, section: dict[str, str]) -> Sink:
    context = SinkContext("cards", (root / "kept").as_uri(), root, output_type=Alert)
    return open_sink(parse("alerts", section), context)


def commit(sink: Sink, epoch: int) -> None:
    pieces = [
        sink.stager().stage(epoch, shard, [record(epoch, shard, row) for row in range(ROWS)])
        for shard in (0, 1)
    ]
    assert sink.commit(epoch, pieces).records == 2 * ROWS


def commit_all(
    root: Path, section: dict[str, str], proxy: FaultyProxy, faults: dict[str, float]
) -> Sink:
    """Commit the epochs as a pipeline does that is started again whenever its sink fails."""
    proxy.at_random(faults)
    draw = random.Random(1)
    epoch, sink = 0, None
    for _ in range(10 * EPOCHS):
        try:
            sink = sink or opened(root, section)
            commit(sink, epoch)
        except SinkUnavailable:
            sink = None
            continue
        epoch += 1
        if draw.random() < 0.3:
            sink = None  # killed between two epochs
        if epoch == EPOCHS:
            break
    proxy.at_random({})
    assert epoch == EPOCHS
    return sink or opened(root, section)


def expected() -> Counter[str]:
    return Counter(f"{e}-{s}-{r}" for e in range(EPOCHS) for s in (0, 1) for r in range(ROWS))


def test_files_in_a_failing_bucket_hold_every_row_once(
    tmp_path: Path, s3_url: str, proxy: FaultyProxy
) -> None:
    bucket = s3_url.partition("?")[0]
    section = {"kind": "parquet", "url": f"{bucket}?endpoint={proxy.endpoint}"}
    sink = commit_all(tmp_path, section, proxy, FAULTS)
    assert Counter(fault for _, _, fault in proxy.seen)["lost"] > 0
    store = open_store(s3_url, SYSTEM)
    tables = [pq.read_table(pa.BufferReader(store.get(info.key)))
              for info in store.list("epoch-")]  # fmt: skip
    assert len(tables) == EPOCHS
    assert Counter(id for table in tables for id in table["id"].to_pylist()) == expected()
    assert not reconcile.verify(sink, EPOCHS - 1).findings


def lake(root: Path, s3_url: str, endpoint: str) -> tuple[dict[str, str], dict[str, Any]]:
    """A sink's section with its files behind this endpoint, and the properties of its catalog."""
    catalog = {
        "type": "sql", "uri": f"sqlite:///{root}/catalog.db", "s3.endpoint": endpoint,
        "s3.region": "us-east-1", "s3.connect-timeout": "30", "s3.request-timeout": "30",
    }  # fmt: skip
    warehouse = s3_url.partition("?")[0]
    section = {"kind": "iceberg", "table": "lake.alerts", "warehouse": warehouse, "retry": "20s"}
    section |= {f"catalog.{name}": value for name, value in catalog.items()}
    return section, {**catalog, "warehouse": warehouse}


def table_ids(catalog: dict[str, Any]) -> Counter[str]:
    with closing(load_catalog(**catalog)) as there:
        return Counter(there.load_table("lake.alerts").scan().to_arrow()["id"].to_pylist())


def test_a_table_in_a_bucket_holds_every_row_once(
    tmp_path: Path, s3_url: str, s3_server: str
) -> None:
    section, catalog = lake(tmp_path, s3_url, s3_server)
    for epoch in range(EPOCHS):
        sink = opened(tmp_path, section)
        commit(sink, epoch)
        commit(sink, epoch)
        sink.close()
    assert table_ids(catalog) == expected()


def test_a_table_in_a_failing_bucket_holds_every_row_once(
    tmp_path: Path, s3_url: str, s3_server: str, proxy: FaultyProxy
) -> None:
    section, _ = lake(tmp_path, s3_url, proxy.endpoint)
    few = {fault: rate / 4 for fault, rate in FAULTS.items()}  # an epoch is thirty requests
    sink = commit_all(tmp_path, section, proxy, few)
    assert not reconcile.verify(sink, EPOCHS - 1).findings
    sink.close()
    assert {fault for _, _, fault in proxy.seen} >= {"503", "lost"}
    _, catalog = lake(tmp_path, s3_url, s3_server)
    assert table_ids(catalog) == expected()


def test_a_table_in_a_bucket_that_throttles_for_a_while_waits_for_it(
    tmp_path: Path, s3_url: str, s3_server: str, proxy: FaultyProxy
) -> None:
    section, _ = lake(tmp_path, s3_url, proxy.endpoint)
    sink = opened(tmp_path, section | {"retry": "1s"})
    proxy.at_random({"503": 1.0})
    with pytest.raises(SinkUnavailable, match=r"The table lake\.alerts is out of reach"):
        commit(sink, 0)
    proxy.at_random({})
    commit(sink, 0)
    sink.close()
    _, catalog = lake(tmp_path, s3_url, s3_server)
    assert table_ids(catalog) == Counter({id: 1 for id in expected() if id.startswith("0-")})


def test_an_epoch_that_a_store_keeps_refusing_fails_and_leaves_nothing(
    tmp_path: Path, s3_url: str, proxy: FaultyProxy
) -> None:
    bucket = s3_url.partition("?")[0]
    section = {"kind": "parquet", "url": f"{bucket}?endpoint={proxy.endpoint}"}
    sink = opened(tmp_path, section)
    proxy.at_random({"403": 1.0})
    with pytest.raises(StoreRefused):
        commit(sink, 0)
    proxy.at_random({})
    assert not list(open_store(s3_url, SYSTEM).list("epoch-"))
    commit(opened(tmp_path, section), 0)
