"""What TLS, rules and encryption at rest cost, beside Apache Kafka with TLS and ours without them.

The same pre-encoded requests go to both of a pair, by turns. TLS is 1.3, with one certificate
(ECDSA, P-256) at both brokers; ours syncs before it acknowledges, Kafka's is its default, which
does not. A handshake is a new connection without a ticket, up to its first answer, by four threads
at once; our bound on their rate is lifted. With rules the client is `User:ANONYMOUS`, who may do by
rule what it does. Keys are a file with one key. Requests and bytes are counted as in `produce`.
"""

import base64
import contextlib
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.certificates import certificate

from benchmarks import load
from benchmarks.bench_produce import DELETING, FETCH, SHAPES, figures
from benchmarks.kafka_jars import KAFKA_VERSION
from benchmarks.kafka_peer import apache_kafka
from benchmarks.measure import Row, chosen_parts, full_page_cache, publish, row
from benchmarks.our_broker import catchwater_broker
from catchwater.broker.access import Rule, change, with_rule
from catchwater.broker.gate import ResourceType

SECONDS = 2.0
ROUNDS = int(os.environ.get("ROUNDS", "5"))
WARM_UP = int(os.environ.get("WARM_UP", "6"))
"""Turns that are not counted, in which the peer's JVM compiles."""
THREADS = 4


class Side(NamedTuple):
    """One broker of a pair."""

    bootstrap: str
    pid: int
    tls: ssl.SSLContext | None = None


def by_turns(
    claim: str, peer: str, runs: list[tuple[Callable[[], load.Result], int]], by_bytes: bool,
    aims: tuple[float | None, float | None],
) -> list[Row]:  # fmt: skip
    """A row of throughput and a row of CPU; `aims` are the ratios that are wanted of them."""
    taken: list[list[tuple[float, float]]] = [[], []]
    for turn in range(WARM_UP + ROUNDS):
        for figured, (run, pid) in zip(taken, runs, strict=True):
            found = figures(run, pid, by_bytes)
            if turn >= WARM_UP:
                figured.append(found)
    units = ("MB/s", "CPU s/GB") if by_bytes else ("requests/s", "CPU s/M requests")
    return [
        row(
            claim,
            unit,
            [each[at] for each in taken[0]],
            peer,
            [each[at] for each in taken[1]],
            target=aims[at],
            better=("higher", "lower")[at],
        )
        for at, unit in enumerate(units)
    ]


def produced_and_fetched(
    how: str, peer: str, sides: list[Side], aims: tuple[float | None, float | None],
    names: tuple[str, ...] = tuple(SHAPES),
) -> list[Row]:  # fmt: skip
    """Rows of all shapes of `produce`, and of its fetch."""
    rows = []
    for number, name in enumerate(names):
        value_bytes, records, in_flight = SHAPES[name]
        for side in sides:
            load.create_topic(side.bootstrap, f"bench-{number}", 1, tls=side.tls)
        request = load.produce_request(f"bench-{number}", 0, value_bytes, records)
        runs = [
            (partial(load.pump, side.bootstrap, request, SECONDS, in_flight, side.tls), side.pid)
            for side in sides
        ]
        with full_page_cache():  # what the last one wrote is deleted, and its pages are gone
            rows += by_turns(f"{how}: {name}", peer, runs, records > 1, aims)
        for side in sides:
            load.delete_topic(side.bootstrap, f"bench-{number}", side.tls)
    for side in sides:
        load.create_topic(side.bootstrap, "tail", 1, tls=side.tls)
        load.pump(side.bootstrap, load.produce_request("tail", 0, 1000, 900), 0.05, 4, side.tls)
    request = load.fetch_request("tail", 0, 0, 1 << 20)
    runs = [
        (partial(load.drain, side.bootstrap, request, SECONDS, 4, side.tls), side.pid)
        for side in sides
    ]
    return [*rows, *by_turns(f"{how}: {FETCH}", peer, runs, True, aims)]


def shaken(side: Side) -> load.Result:
    """New connections, each with its handshake and one request."""
    until_s = time.perf_counter() + SECONDS

    def connect() -> int:
        count = 0
        while time.perf_counter() < until_s:
            load.Connection(side.bootstrap, tls=side.tls).close()
            count += 1
        return count

    start_s = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        counts = [threads.submit(connect) for _ in range(THREADS)]
        made = sum(each.result() for each in counts)
    return load.Result(made, 0, time.perf_counter() - start_s)


@contextlib.contextmanager
def beside_kafka(folder: Path) -> Iterator[list[Side]]:
    pem, ca = certificate(folder)
    tls = ssl.create_default_context(cafile=str(ca))
    kafka = DELETING | {
        "listeners": "SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": "SSL://127.0.0.1:{port}",
        "listener.security.protocol.map": "SSL:SSL,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(pem),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
    }
    lifted = {
        "max_connection_creation_rate": "100000",
        "catchwater_max_connection_creation_rate_per_ip": "100000",
        "catchwater_max_handshake_rate": "100000",
    }
    ours = {
        "listeners": "SSL://127.0.0.1:0", "ssl_keystore_location": str(pem),
        "catchwater_control_listener": "https://127.0.0.1:0", **lifted,
    }  # fmt: skip
    with (
        catchwater_broker(catchwater_delete_grace_ms="1000", **ours) as broker,
        apache_kafka(kafka) as (bootstrap, pid),
    ):
        yield [Side(broker.bootstrap, broker.pid, tls), Side(bootstrap, pid, tls)]


@contextlib.contextmanager
def beside_none(**settings: str) -> Iterator[list[Side]]:
    """Ours with these settings, and without."""
    grace = {"catchwater_delete_grace_ms": "1000"}
    with catchwater_broker(**grace, **settings) as ours, catchwater_broker(**grace) as plain:
        yield [Side(ours.bootstrap, ours.pid), Side(plain.bootstrap, plain.pid)]


def ruled(folder: Path) -> dict[str, str]:
    path = folder / "access.json"
    for kind in (ResourceType.TOPIC, ResourceType.CLUSTER):
        name = "*" if kind is ResourceType.TOPIC else "kafka-cluster"
        rule = Rule("User:ANONYMOUS", "ALLOW", "ALL", kind, name)
        change(path, lambda now, rule=rule: with_rule(now, rule))  # type: ignore[misc]
    return {"catchwater_access_file": str(path), "super_users": "User:admin"}


def sealing(folder: Path) -> dict[str, str]:
    path = folder / "keys"
    path.touch(0o600)
    path.write_text(f"2026 = {base64.b64encode(os.urandom(32)).decode()}\n")
    return {"catchwater_encryption_keys": f"file:{path}"}


def tls(folder: Path) -> list[Row]:
    """Beside Apache Kafka with TLS."""
    kafka = f"Apache Kafka {KAFKA_VERSION} with TLS, default (no sync)"
    with beside_kafka(folder) as sides:
        rows = produced_and_fetched("TLS", kafka, sides, (1.0, None))
        runs = [(partial(shaken, side), side.pid) for side in sides]
        return rows + by_turns("TLS: handshakes", kafka, runs, False, (None, None))


def rules(folder: Path) -> list[Row]:
    """Beside ours without users and rules."""
    with beside_none(**ruled(folder)) as sides:
        return produced_and_fetched(
            "users and rules", "ours without", sides, (0.95, None), tuple(SHAPES)[:1]
        )


def sealed(folder: Path) -> list[Row]:
    """Beside ours without keys."""
    with beside_none(**sealing(folder)) as sides:
        return produced_and_fetched("encrypted at rest", "ours without", sides, (0.9, None))


PARTS = {"tls": tls, "rules": rules, "sealed": sealed}


def main() -> None:
    """All parts, or those that PARTS names: then the rows of the others stay as they were."""
    parts = chosen_parts(PARTS)
    rows: list[Row] = []
    for measured in parts.values():
        with tempfile.TemporaryDirectory() as folder:
            rows += measured(Path(folder))
        publish("secured", rows, is_whole=len(parts) == len(PARTS))


if __name__ == "__main__":
    main()
