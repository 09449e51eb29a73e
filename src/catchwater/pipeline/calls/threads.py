"""Daemon threads that run calls, and may be left behind while they hang.

A thread cannot be ended from outside. A call that is cut keeps its thread until the endpoint lets
go of it; the next call gets another thread, up to a limit. Daemon threads, unlike those of
`concurrent.futures`, do not keep the interpreter from exiting.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue


class Threads:
    """At most so many threads, started when they are needed and kept for the next call."""

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._free = 0
        """Threads that no job has been given to."""

    @property
    def count(self) -> int:
        """Threads there are, busy, hanging or idle."""
        return self._threads

    def run(self, job: Callable[[], None]) -> bool:
        """Run the job, which must not raise, on a thread of its own; False if all of them hang."""
        with self._lock:
            if self._free:
                self._free -= 1
            elif self._threads < self._limit:
                self._threads += 1
                name = f"{self._name}-{self._threads}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
            else:
                return False
        self._jobs.put(job)
        return True

    def _work(self) -> None:
        while True:
            self._jobs.get()()
            with self._lock:
                self._free += 1
