"""What it costs a broker to be watched: 700 topics, 10,000 partitions, a group that lags in all.

The topics' page is painted by Chromium (skipped where there is none), from the start of the
navigation to the first contentful paint. A scrape is all of `/metrics`, with 20,000 series of lag.
Watching is the overview open in one browser and a scrape every five seconds; it is on and off in
turn, on one broker, and its CPU is what the broker takes more then. The p99 of an acknowledgement
is that of `latency`, at 1 MB/s. Figures with a budget miss it where the ratio is above 1.
"""

import multiprocessing
import os
import shutil
import statistics
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event

from benchmarks import bench_latency
from benchmarks.load import create_topic
from benchmarks.measure import Row, cpu_seconds, publish, row
from benchmarks.our_broker import Broker, catchwater_broker
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

SECONDS = float(os.environ.get("SECONDS", "20"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
TOPICS = {f"topic.{number:03d}": 15 if number < 200 else 14 for number in range(700)}
SCRAPE_EVERY_S = 5.0
PAINT_S, SCRAPE_S, CPU_PERCENT = 1.0, 0.05, 2.0
RATE_MB_S = 1
_LOADED = "performance.getEntriesByName('first-contentful-paint')"
_PATIENCE_S = 60
_SETTLES_S, _QUIET = 180.0, 0.05


def fill(bootstrap: str) -> None:
    """Every topic, a record in every partition, and a group that has read none of them."""
    now_ms = round(time.time() * 1000)
    batch = encode_batch([(None, b"x" * 100, now_ms, ())])
    with Client(bootstrap, timeout_s=_PATIENCE_S) as client:
        names = list(TOPICS)
        for first in range(0, len(names), 100):
            client.create_topics({name: TOPICS[name] for name in names[first : first + 100]})
        for name, partitions in TOPICS.items():
            client.produce([((name, at), batch) for at in range(partitions)])
            client.commit("lagging", {(name, at): 0 for at in range(partitions)})
    create_topic(bootstrap, bench_latency.TOPIC, bench_latency.PARTITIONS)


def scrape(control: str) -> float:
    """The seconds that `/metrics` takes."""
    began_s = time.perf_counter()
    with urllib.request.urlopen(f"{control}/metrics", timeout=_PATIENCE_S) as reply:
        assert reply.read().count(b"catchwater_consumer_lag_records{") == sum(TOPICS.values())
    return time.perf_counter() - began_s


@contextmanager
def watched(broker: Broker) -> Iterator[None]:
    """The overview is open, and the metrics are scraped every five seconds.

    By another process: here its threads would hold up the producer whose records are timed.
    """
    spawn = multiprocessing.get_context("spawn")
    sees = spawn.Event()
    process = spawn.Process(target=_watch, args=(broker.control, sees), daemon=True)
    process.start()
    try:
        # Until then it takes a whole core, which no browser's page does.
        assert sees.wait(_PATIENCE_S), "the page has come"
        yield
        assert process.is_alive(), "it watches to the end"
    finally:
        process.kill()
        process.join()


def _watch(control: str, sees: Event) -> None:
    def page() -> None:
        while True:
            headers = {"accept": "text/event-stream"}
            asked = urllib.request.Request(f"{control}/", headers=headers)
            with urllib.request.urlopen(asked, timeout=_PATIENCE_S) as stream:
                while stream.readline():
                    sees.set()

    threading.Thread(target=page, daemon=True).start()
    while True:
        time.sleep(SCRAPE_EVERY_S)
        scrape(control)


def busy_percent(broker: Broker) -> float:
    """The share of a core that the broker takes while nobody produces."""
    before_s = cpu_seconds(broker.pid)
    time.sleep(SECONDS)
    return (cpu_seconds(broker.pid) - before_s) / SECONDS * 100


def settle(broker: Broker) -> None:
    """Wait until what was produced is packed, and nobody has anything to do.

    Raises `RuntimeError` if that does not come: figures of a busy broker say nothing.
    """
    until_s = time.monotonic() + _SETTLES_S
    while time.monotonic() < until_s:
        before_s = cpu_seconds(broker.pid)
        time.sleep(SCRAPE_EVERY_S)
        if (cpu_seconds(broker.pid) - before_s) / SCRAPE_EVERY_S < _QUIET:
            return
    raise RuntimeError(f"The broker was busy for {_SETTLES_S:g} s after the last record.")


def paints(broker: Broker) -> list[float]:
    """Seconds to the first paint of the list of topics; none without Chromium."""
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        return []
    from playwright.sync_api import sync_playwright

    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        for _ in range(1 + ROUNDS):
            page.goto(f"{broker.control}/topics")
            # The page's policy lets Playwright wait for no expression.
            until_s = time.monotonic() + _PATIENCE_S
            while not page.evaluate(f"{_LOADED}.length") and time.monotonic() < until_s:
                time.sleep(0.05)
            found.append(page.evaluate(f"{_LOADED}[0].startTime") / 1000)
        browser.close()
    return found[1:]


def p99_ms(broker: Broker) -> float:
    """Of an acknowledgement."""
    taken = bench_latency.latencies(broker.bootstrap, RATE_MB_S, SECONDS)
    return taken[len(taken) * 99 // 100]


def main() -> None:
    """Measure and publish."""
    rows: list[Row] = []
    with catchwater_broker() as broker:
        fill(broker.bootstrap)
        settle(broker)
        painted = paints(broker)
        if painted:
            rows.append(row("first paint, 700 topics", "s", painted, "budget",
                            [PAINT_S] * len(painted), target=1.0, better="lower"))  # fmt: skip
        scrape(broker.control)
        taken = [scrape(broker.control) for _ in range(4 * ROUNDS) if not time.sleep(0.5)]
        rows.append(row("scrape, 10,000 partitions", "s", taken, "budget",
                        [SCRAPE_S] * len(taken), target=1.0, better="lower"))  # fmt: skip
        more = []
        for _ in range(ROUNDS):
            idle = busy_percent(broker)
            with watched(broker):
                more.append(max(0.0, busy_percent(broker) - idle))
        rows.append(row("CPU of a page and a scrape every 5 s", "% of a core", more, "budget",
                        [CPU_PERCENT] * len(more), target=1.0, better="lower"))  # fmt: skip
        alone, seen = [], []
        p99_ms(broker)
        for _ in range(ROUNDS):
            alone.append(p99_ms(broker))
            with watched(broker):
                seen.append(p99_ms(broker))
        rows.append(row("acknowledgement at 1 MB/s, p99", "ms", seen, "not watched", alone,
                        target=1.05, better="lower"))  # fmt: skip
    print(f"scrapes: {statistics.median(taken):.3f} s; p99: {alone} alone, {seen} watched")
    publish("watched", rows)


if __name__ == "__main__":
    main()
