"""A file that grows while connectors carry it through a topic into another."""

import contextlib
import threading
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from conformance.suites.beside import beside
from conformance.suites.jvm import until

LINES, AT_ONCE, EVERY_S = 20_000, 100, 0.1
"""It grows for 20 s."""
ARRIVED_S = 90.0


class GrowingFile:
    """`line 0`, `line 1` and so on; `source` and `target` are there from the beginning."""

    lines = LINES

    def __init__(self, name: str, bootstrap: str, folder: Path, partitions: int) -> None:
        self.name, self.bootstrap, self.folder = name, bootstrap, folder
        self.topic = f"{name}-lines"
        self.source, self.target = folder / f"{name}.in", folder / f"{name}.out"
        self.source.touch()
        self.target.touch()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(self.topic, partitions, 1)])[self.topic].result(30)

    def growing(self) -> contextlib.AbstractContextManager[None]:
        """Until all lines are written, or until the `with` is left."""
        return beside(self._grow)

    def _grow(self, stopped: threading.Event) -> None:
        with self.source.open("a", buffering=1 << 20) as file:
            for first in range(0, LINES, AT_ONCE):
                file.writelines(f"line {number}\n" for number in range(first, first + AT_ONCE))
                file.flush()
                if stopped.wait(EVERY_S):
                    return

    def when_arrived(self, part: float) -> None:
        """Wait until that part of the lines is in the target. Raises `Late`."""
        wanted = int(part * LINES)
        until(lambda: len(set(self.target.read_bytes().splitlines())) >= wanted,
              f"the {wanted}th line", ARRIVED_S)  # fmt: skip
