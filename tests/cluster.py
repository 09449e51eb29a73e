"""Several brokers over one PostgreSQL: the shared mode as real processes.

Stores lie in a directory that all see unless the settings say otherwise. Each broker has a zone of
its own (`a`, `b`, `c`) and keeps its ports through restarts.
"""

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.conftest import BrokerProcess

ZONES = ("a", "b", "c")


class Brokers:
    """Brokers numbered from 1 over one catalog."""

    def __init__(
        self, home: Path, catalog: str, settings: Mapping[str, str], zones: Sequence[str] = ZONES
    ) -> None:
        """`catalog` is the URL of an empty database; nothing is started yet."""
        common = {
            "catchwater.catalog": catalog,
            "catchwater.objects": f"file://{home}/objects",
            "catchwater.wal": "object",
            "catchwater.wal.linger.ms": "10",
        } | dict(settings)
        self.all: dict[int, BrokerProcess] = {}
        for number, zone in enumerate(zones, start=1):
            own = {"node.id": str(number), "broker.rack": zone}
            place = home / f"broker-{number}"
            place.mkdir(parents=True)
            self.all[number] = BrokerProcess(place, common | own)

    def start(self) -> None:
        """Start those that do not run, all at once, and wait until they are ready."""
        waiting = [broker for broker in self.all.values() if not broker.is_running]
        for broker in waiting:
            broker.spawn()
        for broker in waiting:
            broker.await_ready()

    @property
    def bootstrap(self) -> str:
        """All brokers, as clients want them named."""
        return ",".join(broker.bootstrap for broker in self.all.values())

    def by_bootstrap(self, address: str) -> int:
        """The number of the broker with this address."""
        return next(n for n, broker in self.all.items() if broker.bootstrap == address)

    def signal(self, number: int, which: signal.Signals) -> None:
        """Send a signal to one broker and its children."""
        process = self.all[number].process
        assert process is not None
        process.send_signal(which)

    def close(self) -> None:
        """kill -9 to all."""
        for broker in self.all.values():
            if broker.is_running:
                assert broker.process is not None
                broker.process.send_signal(signal.SIGCONT)
            broker.kill()

    def log(self) -> str:
        """What all of them have written to stderr."""
        return "".join(broker.log() for broker in self.all.values())


def ask(broker: BrokerProcess, path: str) -> tuple[int, Any]:
    """GET from a broker's control API: status and JSON."""
    try:
        with urllib.request.urlopen(broker.control_url + path, timeout=60) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


def metric(broker: BrokerProcess, name: str) -> float:
    """The sum of a metric's samples on a broker."""
    with urllib.request.urlopen(broker.control_url + "/metrics", timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    values = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return sum(float(value) for key, value in values if key.partition("{")[0] == name)
