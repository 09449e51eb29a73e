"""Spark's daemon for Python workers, with our imports made once before it forks.

Spark forks a worker for every task that runs at a time; without this each of them would load
Arrow, the record decoders and the function's machinery anew, a second or two of CPU a worker.
Named by `spark.python.daemon.module`.
"""

from pyspark import daemon

from catchwater.pipeline import pack, process, shard
from catchwater.replay import read
from catchwater.sinks import log

PRELOADED = (log, pack, process, read, shard)

if __name__ == "__main__":
    daemon.manager()
