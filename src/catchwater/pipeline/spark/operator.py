"""The thin shell around a stage: Spark's batches of one partition in, our rows out.

Spark has shuffled the rows by label, so a partition holds all rows of its shards; they may come in
any order and any number of batches. Spark tries a failed task again and may run one twice; which
attempt counts, the ledger decides.
"""

from collections.abc import Callable, Iterator

import pyarrow as pa

from catchwater.pipeline.rows import from_arrow, to_arrow
from catchwater.pipeline.shard_epoch import Stage, run_stage


def operator(stage: Stage) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What `mapInArrow` is given for this stage."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = [row for batch in batches for row in from_arrow(batch)]
        out = list(run_stage(stage, rows))
        if out:
            yield to_arrow(out)

    return run
