"""Spark's daemon for Python workers, with our imports made once before it forks.

Spark forks a worker for every task that runs at a time; without this each of them would load
Arrow, the record decoders with their compiled loops, and the function's machinery anew: three
seconds of CPU a worker.
Named by `spark.python.daemon.module`.
"""

import gc

from pyspark import daemon

from catchwater.pipeline import shard_epoch
from catchwater.replay import read
from catchwater.sinks.log import stager
from catchwater.wire import records

PRELOADED = (read, shard_epoch, stager)

if __name__ == "__main__":
    records.warm()
    # A worker collects garbage after every task, which for what is imported here takes 0.1 s.
    gc.freeze()
    daemon.manager()
