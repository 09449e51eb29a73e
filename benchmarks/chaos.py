"""MINUTES of kills, pauses and store faults against three brokers; then nothing may be wrong.

Three brokers over PostgreSQL and an S3 server (moto, behind a proxy that delays, refuses, forgets
and cuts), three idempotent and two transactional producers, three consumers with all partitions
and two in a group. All the while brokers are killed, stopped and continued, restarted in order,
connections to the catalog are cut, and requests to the store fail. Then everything is healed, what
was sent is flushed, every partition is read to its end, and `catchwater check` judges the history.

    make chaos MINUTES=10     SEED=7 chooses other faults, WAL=postgres or WAL=file another log
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic
from tests.cluster import Brokers
from tests.postgres import PostgresServer
from tests.s3 import CREDENTIALS, make_bucket, moto

from benchmarks.chaos_clients import (
    Place,
    Recorder,
    consume_all,
    consume_as_group,
    produce,
    read_to_the_end,
    transact,
    watch,
)
from benchmarks.measure import RESULTS, machine
from benchmarks.store_proxy import StoreProxy, store_proxy

MINUTES = float(os.environ.get("MINUTES", "10"))
SEED = int(os.environ.get("SEED", "2026"))
WAL = os.environ.get("WAL", "object")
PARTITIONS = 6
TOPIC = "chaos"
RATE = 15.0
"""Records or transactions a second of one producer."""
QUIET_S = 5.0
"""Without faults, before and after."""
FINAL_S = 600.0
SETTINGS = {
    "catchwater.pack.interval.ms": "3000",
    "catchwater.pack.min.bytes": "1",
    "catchwater.pack.backlog.bytes": "1",
    "catchwater.wal.linger.ms": "50",
    "catchwater.retention.interval.ms": "3000",
    "catchwater.delete.grace.ms": "5000",
    "log.retention.ms": "-1",
}


class Faults:
    """What is done to brokers, one at a time, and meanwhile to what they rely on, by chance."""

    def __init__(self, brokers: Brokers, proxy: StoreProxy, database: str, seed: int) -> None:
        self.counts: Counter[str] = Counter()
        self._brokers = brokers
        self._proxy = proxy
        self._database = database
        self._noise = random.Random(seed)
        self._elsewhere = random.Random(seed + 1)

    def to_brokers(self, stop: threading.Event) -> None:
        """Until stopped; every fault has ended then."""
        kinds = {"kill -9": self._kill, "SIGSTOP": self._pause, "SIGTERM": self._restart}
        self._run(kinds, self._noise, stop)

    def to_stores(self, stop: threading.Event) -> None:
        """As `to_brokers`."""
        kinds = {"store faults": self._store, "catalog connections cut": self._cut}
        self._run(kinds, self._elsewhere, stop)

    def _run(
        self, kinds: Mapping[str, Callable[[], None]], noise: random.Random, stop: threading.Event
    ) -> None:
        while not stop.wait(noise.uniform(0.5, 4)):
            kind = noise.choice(sorted(kinds))
            kinds[kind]()
            self.counts[kind] += 1

    def _any(self) -> int:
        return self._noise.choice(sorted(self._brokers.all))

    def _kill(self) -> None:
        number = self._any()
        self._brokers.all[number].kill()
        time.sleep(self._noise.uniform(0, 4))
        self._brokers.start()

    def _pause(self) -> None:
        number = self._any()
        self._brokers.signal(number, signal.SIGSTOP)
        time.sleep(self._noise.uniform(0.1, 8))
        self._brokers.signal(number, signal.SIGCONT)

    def _restart(self) -> None:
        broker = self._brokers.all[self._any()]
        try:
            broker.stop()
        except subprocess.TimeoutExpired:
            self.counts["SIGTERM that took too long, then kill -9"] += 1
            broker.kill()
        self._brokers.start()

    def _store(self) -> None:
        self._proxy.share = self._elsewhere.uniform(0.05, 0.5)
        time.sleep(self._elsewhere.uniform(1, 6))
        self._proxy.share = 0.0

    def _cut(self) -> None:
        with psycopg.connect(self._database, autocommit=True) as connection:
            for _ in range(self._elsewhere.randint(1, 5)):
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                time.sleep(self._elsewhere.uniform(0, 0.5))


@contextmanager
def system(home: Path) -> Iterator[tuple[Brokers, StoreProxy, str]]:
    """Everything, started: brokers, the proxy before the store, the catalog's URL."""
    os.environ.update(CREDENTIALS)
    with ExitStack() as stack:
        postgres = PostgresServer()
        stack.callback(postgres.close)
        database = postgres.new_database()
        proxy = stack.enter_context(store_proxy(stack.enter_context(moto()), SEED))
        store = make_bucket(proxy.url, "chaos")
        settings = SETTINGS | {"catchwater.objects": store, "catchwater.wal": WAL}
        if WAL == "file":
            settings["catchwater.wal.dir"] = str(home / "wal")
        brokers = Brokers(home / "brokers", database, settings)
        stack.callback(brokers.close)
        brokers.start()
        admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
        (created,) = admin.create_topics([NewTopic(TOPIC, PARTITIONS)]).values()
        created.result(30)
        yield brokers, proxy, database


def run(home: Path, history: Path) -> tuple[Recorder, Faults, Brokers]:
    """The clients, the faults, the healing and the final polls; the history is written."""
    recorder = Recorder(history)
    threading.excepthook = lambda failed: recorder.problem(f"a thread ended: {failed.exc_value!r}")
    with system(home) as (brokers, proxy, database):
        place = Place(brokers.bootstrap, TOPIC, PARTITIONS)
        sending, reading, failing = threading.Event(), threading.Event(), threading.Event()
        faults = Faults(brokers, proxy, database, SEED)
        addresses = [broker.bootstrap for broker in brokers.all.values()]
        senders = [partial(produce, place, recorder, sending, RATE)] * 3
        senders += [
            partial(transact, place, recorder, sending, RATE / 3, f"chaos-{n}") for n in range(2)
        ]
        readers = [
            partial(consume_all, place, recorder, reading, committed=committed)
            for committed in (True, True, False)
        ]
        readers += [partial(consume_as_group, place, recorder, reading, "chaos")] * 2
        readers += [partial(watch, place, recorder, reading, address) for address in addresses]
        threads = [_thread(call) for call in senders]
        watching = [_thread(call) for call in readers]
        time.sleep(QUIET_S)
        breaking = [
            _thread(partial(kind, failing)) for kind in (faults.to_brokers, faults.to_stores)
        ]
        time.sleep(MINUTES * 60)
        failing.set()
        for thread in breaking:
            thread.join()
        brokers.start()
        time.sleep(QUIET_S)
        sending.set()
        for thread in threads:
            thread.join()
        reading.set()
        for thread in watching:
            thread.join()
        read_to_the_end(place, recorder, FINAL_S)
        (history.parent / "brokers.log").write_text(brokers.log())
    recorder.close()
    return recorder, faults, brokers


def _thread(call: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def main() -> None:
    """Run, judge, publish; exit 1 if anything is wrong, and keep the history then."""
    folder = Path(tempfile.mkdtemp(prefix="catchwater-chaos-"))
    history = folder / "history.jsonl"
    recorder, faults, brokers = run(folder, history)
    command = [str(Path(sys.executable).with_name("catchwater")), "check", str(history), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout or "{}")
    tracebacks = brokers.log().count("Traceback")
    print(done.stderr, end="")
    for name, count in sorted((recorder.counts + faults.counts).items()):
        print(f"{count:8,d}  {name}")
    for problem in recorder.problems:
        print(f"problem: {problem}")
    is_good = done.returncode == 0 and report.get("verdict") == "pass" and not recorder.problems
    verdict = "pass" if is_good and not tracebacks else "fail"
    result = {
        "machine": machine(), "minutes": MINUTES, "seed": SEED, "verdict": verdict,
        "faults": faults.counts, "operations": recorder.counts, "tracebacks": tracebacks,
        "findings": report.get("findings"), "problems": recorder.problems,
    }  # fmt: skip
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "chaos.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"verdict: {verdict}; seed {SEED}, {MINUTES:g} minutes")
    if verdict == "fail":
        print(done.stdout[-3000:])
        sys.exit(f"error: look at {history} and {folder / 'brokers.log'}")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
