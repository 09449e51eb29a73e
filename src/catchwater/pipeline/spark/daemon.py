"""Spark's daemon for Python workers, with our imports made once before it forks.

Spark forks a worker for every task that runs at a time; without this each of them would load
Arrow, the record decoders with their compiled loops, and the function's machinery anew: three
seconds of CPU a worker.
Named by `spark.python.daemon.module`.
"""

import gc
import os
import signal
from types import FrameType

from pyspark import daemon

from catchwater.pipeline import shard_epoch, workers
from catchwater.replay import read
from catchwater.sinks import log_stager as stager
from catchwater.wire import arrow

PRELOADED = (read, shard_epoch, stager)


def _reap(number: int, frame: FrameType | None) -> None:
    workers.reap()


if __name__ == "__main__":
    arrow.warm()
    # Spark's daemon lets the system forget how its workers end; after its first fork, this stands.
    os.register_at_fork(
        after_in_parent=lambda: signal.signal(signal.SIGCHLD, _reap) and None,
        after_in_child=workers.show_prints,
    )
    # A worker collects garbage after every task, which for what is imported here takes 0.1 s.
    gc.freeze()
    daemon.manager()
