"""How many files a reader must open to follow one request, or the start of one pipeline.

A profile hook (`sys.setprofile`) notes every call of a function of ours, in every thread: of a
Produce, a Fetch and an EndTxn (of a transaction that wrote to two partitions) to a broker alone,
from the bytes' arrival until the answer is given to the socket. Each is asked ROUNDS times and the
shortest way counts, since a broker has work of its own beside. A pipeline's start is followed in
its driver, from the command line until Spark has been given the query: in the main thread and in
the one that starts Spark, and not in those that report and save beside it.

Counted are files, functions, and moves: calls into another file than the call before. What runs
only because a module is imported is left out. `--files` names the files, in the order in which they
are first entered; `--only requests` leaves Spark out. The last line is JSON: files by request.
"""

import argparse
import datetime
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import catchwater

ROOT = Path(__file__).parent.parent
SRC = str(Path(catchwater.__file__).parent) + "/"
ROUNDS = int(os.environ.get("ROUNDS", "30"))
START_S = 180.0

PIPELINE = """[pipeline]
name = "hops"
function = "card_rule:CardRule"
checkpoint = "checkpoint"
local = "local"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "hops"
startingOffsets = "earliest"
recordKeyIsFunctionKey = true
[sink.alerts]
topic = "hops-alerts"
"""


class Way(NamedTuple):
    """The calls of one request, in order: file (below the package) and function."""

    calls: list[tuple[str, str]]

    @property
    def files(self) -> list[str]:
        """In the order in which they are first entered."""
        return list(dict.fromkeys(file for file, _ in self.calls))

    @property
    def moves(self) -> int:
        files = [file for file, _ in self.calls]
        return sum(a != b for a, b in itertools.pairwise(files))

    def in_words(self, name: str) -> str:
        return (
            f"{name}: {len(self.files)} files, {len(set(self.calls))} functions, {self.moves} moves"
        )


class Recorder:
    """Notes calls while it is `on`; to be installed before the threads of interest are started."""

    def __init__(self) -> None:
        self.on = self._until_sent = False
        self._threads: tuple[str, ...] = ("",)
        self._calls: list[tuple[str, str]] = []

    def install(self, *threads: str) -> None:
        """Into all threads, or into those whose names begin so."""
        self._threads = threads or ("",)
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def begin(self, *, until_sent: bool = False) -> None:
        """Note calls from now on; `until_sent` ends before the first byte goes out on TCP."""
        self._calls, self._until_sent = [], until_sent
        self.on = True

    def end(self) -> Way:
        self.on = False
        return Way(self._calls)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if not self.on:
            return
        if event == "c_call" and argument.__name__ in ("send", "sendmsg"):
            # The loop wakes itself by a socket of another family.
            if getattr(argument.__self__, "family", None) == socket.AF_INET:
                self.on = not self._until_sent
        if event != "call":
            return
        code = frame.f_code
        if not threading.current_thread().name.startswith(self._threads):
            return
        if code.co_filename.startswith(SRC) and not _is_importing(frame):
            self._calls.append((code.co_filename.removeprefix(SRC), code.co_qualname))


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(SRC):
            return True
        frame = frame.f_back
    return False


def requests() -> dict[str, Way]:
    """The ways of a Produce, a Fetch and an EndTxn through a broker in this process."""
    from catchwater.broker.main import run
    from catchwater.broker_config import load_broker_config

    # asyncio's own loop shows what it sends to a profile hook, and uvloop does not.
    sys.modules["uvloop"] = None  # type: ignore[assignment]
    recorder = Recorder()
    with tempfile.TemporaryDirectory(prefix="catchwater-hops-") as scratch:
        ready = Path(scratch) / "ready.json"
        config = {
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "catchwater.control.listener": "127.0.0.1:0",
            "log.dirs": f"{scratch}/data",
            "catchwater.ready.file": str(ready),
        }

        def ask() -> dict[str, Way]:
            sys.setprofile(None)
            try:
                return _ask_all(recorder, ready)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        recorder.install()
        with ThreadPoolExecutor(1) as client:
            asked = client.submit(ask)
            run(load_broker_config(None, {}, config))
            sys.setprofile(None)
            return asked.result()


def _ask_all(recorder: Recorder, ready: Path) -> dict[str, Way]:
    from benchmarks.load import Connection, create_topic, fetch_request, produce_request

    until = time.monotonic() + START_S
    while not ready.exists():
        assert time.monotonic() < until, "the broker did not start"
        time.sleep(0.05)
    bootstrap = json.loads(ready.read_text())["kafka"]
    create_topic(bootstrap, "hops", 2)
    connection = Connection(bootstrap)

    def shortest(request: Callable[[int], bytes], before: Callable[[int], None]) -> Way:
        ways = []
        for round_ in range(ROUNDS):
            before(round_)
            data = request(round_)
            time.sleep(0.02)  # what the broker still does for the request before is done
            recorder.begin(until_sent=True)
            connection.call(data)
            ways.append(recorder.end())
        return min(ways, key=lambda way: (len(way.files), len(way.calls)))

    produce = produce_request("hops", 0, 100, 10)
    fetch = fetch_request("hops", 0, 0, 1 << 20)
    transaction = _Transaction(connection)
    return {
        "produce": shortest(lambda _: produce, lambda _: None),
        "fetch": shortest(lambda _: fetch, lambda _: None),
        "end_txn": shortest(transaction.end, transaction.write),
    }


class _Transaction:
    """Requests of one transactional producer, by hand: two partitions, then the commit."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._sequence = 0
        self._id = self._epoch = 0

    def write(self, round_: int) -> None:
        from kio.schema.add_partitions_to_txn.v3 import request as add
        from kio.schema.init_producer_id.v4 import InitProducerIdRequest, InitProducerIdResponse
        from kio.serial import entity_reader

        from benchmarks.load import NOW_MS, encode, frame
        from catchwater.wire.arrow import encode_batch

        if not round_:
            init = InitProducerIdRequest(
                transactional_id="hops",
                transaction_timeout=datetime.timedelta(seconds=60),
                producer_id=-1,
                producer_epoch=-1,
            )  # fmt: skip
            answer = self._connection.call(frame(22, 4, True, encode(init)))
            reply = entity_reader(InitProducerIdResponse)(answer, 5)[0]
            self._id, self._epoch = reply.producer_id, reply.producer_epoch
        topic = add.AddPartitionsToTxnTopic(name="hops", partitions=(0, 1))
        added = add.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="hops",
            v3_and_below_producer_id=self._id,
            v3_and_below_producer_epoch=self._epoch,
            v3_and_below_topics=(topic,),
        )
        self._connection.call(frame(24, 3, True, encode(added)))
        for partition in (0, 1):
            batch = encode_batch(
                [(b"key", b"value", NOW_MS, ())],
                producer_id=self._id,
                producer_epoch=self._epoch,
                base_sequence=round_,
                transactional=True,
            )
            self._connection.call(_produce(partition, batch))

    def end(self, round_: int) -> bytes:
        from kio.schema.end_txn.v3 import EndTxnRequest

        from benchmarks.load import encode, frame

        end = EndTxnRequest(
            transactional_id="hops",
            producer_id=self._id,
            producer_epoch=self._epoch,
            committed=True,
        )  # fmt: skip
        return frame(26, 3, True, encode(end))


def _produce(partition: int, batch: bytes) -> bytes:
    from kio.schema.produce.v9 import request as produce

    from benchmarks.load import encode, frame

    data = produce.PartitionProduceData(index=partition, records=batch)
    topic = produce.TopicProduceData(name="hops", partition_data=(data,))
    request = produce.ProduceRequest(
        transactional_id="hops",
        acks=-1,
        timeout=datetime.timedelta(seconds=10),
        topic_data=(topic,),
    )  # fmt: skip
    return frame(0, 9, True, encode(request))


def pipeline_start() -> dict[str, Way]:
    """The way of `catchwater pipeline run` in its driver, until Spark has been given the query."""
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from benchmarks.functions.ours import FUNCTION
    from benchmarks.load import create_topic
    from benchmarks.our_broker import catchwater_broker
    from catchwater.cli import main

    recorder = Recorder()
    ways: dict[str, Way] = {}
    start = DataStreamWriter.start

    def started(*arguments: Any, **named: Any) -> Any:
        query = start(*arguments, **named)
        ways["pipeline_start"] = recorder.end()
        os.kill(os.getpid(), signal.SIGTERM)
        return query

    DataStreamWriter.start = started
    with (
        tempfile.TemporaryDirectory(prefix="catchwater-hops-") as scratch,
        catchwater_broker() as broker,
    ):
        folder = Path(scratch)
        (folder / "card_rule.py").write_text(FUNCTION)
        (folder / "pipeline.toml").write_text(PIPELINE.format(bootstrap=broker.bootstrap))
        create_topic(broker.bootstrap, "hops", 2)
        command = ["pipeline", "run", str(folder / "pipeline.toml"), "--no-supervise", "--quick"]
        sys.argv = ["catchwater", *command]
        recorder.install("MainThread", "start-spark")
        recorder.begin()
        try:
            main()
        except SystemExit as ended:
            assert "pipeline_start" in ways, f"the pipeline ended with {ended.code} before it ran"
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return ways


_PARTS: dict[str, Callable[[], dict[str, Way]]] = {
    "requests": requests,
    "pipeline": pipeline_start,
}


def main() -> None:
    """Each part in a process of its own, since a broker and a driver both want the main thread."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=list(_PARTS))
    parser.add_argument("--files", action="store_true", help="name the files")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.into:
        ways = _PARTS[options.only]()
        options.into.write_text(json.dumps({name: way.calls for name, way in ways.items()}))
        return
    found: dict[str, Way] = {}
    with tempfile.TemporaryDirectory(prefix="catchwater-hops-") as scratch:
        for part in [options.only] if options.only else list(_PARTS):
            into = Path(scratch) / part
            command = [sys.executable, "-m", "benchmarks.hops", "--only", part, "--into", str(into)]
            child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
            if child.returncode or not into.exists():
                sys.exit(f"{part} was not followed to its end:\n{child.stderr[-4000:]}")
            calls = json.loads(into.read_text())
            found |= {name: Way([(f, g) for f, g in each]) for name, each in calls.items()}
    for name, way in found.items():
        print(way.in_words(name))
        if options.files:
            print("".join(f"    {file}\n" for file in way.files), end="")
    print(json.dumps({name: len(way.files) for name, way in found.items()}))


if __name__ == "__main__":
    main()
