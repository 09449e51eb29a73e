"""Every sink under everything that befalls a pipeline's state, checkpoints and versions.

0 missing, 0 twice, after each. The outputs are those of a function with late and repeated events,
held to a plain loop. What an at-least-once sink has twice is known by its identity, and mended.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.kv_server import KeyValueServer, key_value_server
from tests.e2e.every_sink import CASE, EverySink
from tests.e2e.life import Life, live

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]


@pytest.fixture
def store() -> Iterator[KeyValueServer]:
    with key_value_server() as server:
        yield server


@pytest.mark.parametrize("kafka", ["own", "apache"])
def test_every_sink_has_every_row_once_whatever_befalls_the_pipeline(
    kafka: str,
    make_broker: Callable[..., Any],
    postgres_url: str,
    store: KeyValueServer,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    foreign = str(request.getfixturevalue("apache_kafka")) if kafka == "apache" else ""
    life = Life(CASE, make_broker({"log.retention.ms": "-1"}).bootstrap, tmp_path / "life")
    sinks = EverySink(life, postgres_url, store, foreign)
    live(life, sinks.check, sinks.restored)
    doubled, rows = sinks.doubled, life.expected.total()
    print(f"at least once: {doubled} rows twice beside {rows}")
    assert doubled > 0
    sinks.verify_and_mend()
