"""Each sink held to what it promises: rows there once, and every damaged one found and mended.

Five epochs are committed, and each once more as after a crash of the driver; a plain reader then
counts. Then a hundred rows are lost, doubled and altered behind the sink's back, as far as its kind
allows: an endpoint's rows cannot be doubled; of a log they are only lost, in what it answers, for
nothing else there can be mended.
"""

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.conformance.sink_targets import HttpTarget, Target, plan_damage, record, write

from benchmarks.measure import Row, row
from catchwater.sinks.base import RowId
from catchwater.sinks.reconcile import repair, verify

EPOCHS = 5
SHARDS = (0, 2)
"""Those of `sink_targets.stage` that put something out."""
DAMAGED = 100

_STORE = """
import json, sys, threading
from tests.conformance.kv_server import KeyValueServer
server = KeyValueServer()
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.url, flush=True)
for _ in sys.stdin:
    print(json.dumps([body.decode() for body in server.content.values()]), flush=True)
"""


class Store:
    """A key-value store in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.url = self._line().strip()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def bodies(self) -> list[Any]:
        """All that it holds."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return [json.loads(body) for body in json.loads(self._line())]


@contextmanager
def key_value_store() -> Iterator[Store]:
    """A store for as long as the context lasts."""
    with subprocess.Popen(
        [sys.executable, "-c", _STORE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Store(process)
        finally:
            process.terminate()


class StoreTarget(HttpTarget):
    """The endpoint of the sinks' suite, asked from outside of its process."""

    def read(self) -> list[dict[str, Any]]:
        """What the suite wrote; the benchmark's own rows have other fields."""
        return [body for body in self.server.bodies() if "rule" not in body]

    def damage(
        self, lost: Sequence[RowId], doubled: Sequence[RowId], altered: Sequence[RowId]
    ) -> None:
        """By requests as anybody could send them."""
        assert not doubled
        for id in lost:
            self._request("DELETE", id, None)
        for id in altered:
            body = {**json.loads(record(*id).value), "amount": -1}
            self._request("PUT", id, json.dumps(body).encode())

    def _request(self, method: str, id: RowId, body: bytes | None) -> None:
        url = f"{self.server.url}/alerts/{id.epoch}-{id.shard}-{id.row}"
        with urlopen(Request(url, body, method=method)):
            pass


def checked(name: str, make: Callable[[Path], Target], rows: int) -> list[Row]:
    """The counts of one sink with so many rows; raises AssertionError after what is wrong."""
    each = rows // (EPOCHS * len(SHARDS))
    whole = EPOCHS * len(SHARDS) * each
    number = min(DAMAGED, whole // 10)
    with tempfile.TemporaryDirectory(prefix="bench-sinks-") as folder:
        with closing(make(Path(folder))) as target, closing(target.open()) as sink:
            for epoch in range(EPOCHS):
                write(sink, epoch, each)
                write(sink, epoch, each)
            there = Counter(alert["id"] for alert in target.read())
            once = sum(times == 1 for times in there.values())
            damage = plan_damage(target, EPOCHS, each, number)
            if "doubled" not in target.mends and not target.replaces:
                damage = [id for ids in damage for id in ids], [], []
            target.damage(*damage)
            found = verify(sink, EPOCHS - 1)
            left = repair(sink, found)
            again = verify(sink, EPOCHS - 1)
    assert len(there) == once == whole, f"{name}: {whole} put out, {len(there)} there, {once} once"
    wrong = {finding.id for finding in found.findings}
    assert wrong == {id for ids in damage for id in ids}, f"{name}: not what was damaged"
    assert not left and not again.findings, f"{name}: {len(again.findings)} left"
    mended = len(found.findings) - len(again.findings)
    return [
        row(f"{name}: rows that are there once", "rows", [once], "rows put out", [whole]),
        row(f"{name}: rows that verify names", "rows", [len(wrong)], "damaged", [number]),
        row(f"{name}: rows that repair mends", "rows", [mended], "named", [len(wrong)]),
    ]
