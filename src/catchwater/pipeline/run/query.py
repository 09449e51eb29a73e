"""The query: packed source, then for every function a shuffle to the shards and an operator.

Imports Spark only when it is called.
"""

import hashlib
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchwater.pipeline.functions.policy import Poison
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.pack import shard_labels
from catchwater.pipeline.pipeline import Pipeline
from catchwater.pipeline.run.config import AVAILABLE_NOW, CONTINUOUS, DEAD_LETTER, PipelineConfig
from catchwater.pipeline.run.fit import source_of
from catchwater.pipeline.shard_epoch import Stage
from catchwater.pipeline.spark import session
from catchwater.recovery.home import key_part, state_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from catchwater.pipeline.spark.source import PackedSettings


_OWNER = "checkpoint"
"""A file in a checkpoint's folder of the cache: the checkpoint's path."""


def stages(pipeline: Pipeline) -> list[Stage]:
    """The functions of the chain, and what the tasks need to run them."""
    config = pipeline.config
    local = config.local or _cached(config.checkpoint)
    last = len(pipeline.specs) - 1
    sinks = pipeline.sinks
    dead_letters = sinks.get(DEAD_LETTER)
    made = []
    for index, (spec, code) in enumerate(zip(pipeline.specs, pipeline.codes, strict=True)):
        stagers = {
            name: sink.stager()
            for name, sink in sinks.items()
            if source_of(config.every_sink[name], pipeline.specs) is spec
        }
        late = sinks.get(spec.late_sink or "")
        made.append(
            Stage(
                index=index,
                code=code,
                shards=config.shard_count,
                objects=pipeline.home,
                folder=state_folder(spec.name),
                function=spec.name,
                local=str(local / key_part(spec.name)),
                stagers=stagers,
                retracting=frozenset(name for name, sink in sinks.items() if sink.retracts),
                next=None if index == last else pipeline.codes[index + 1],
                dead_letters=dead_letters.stager() if dead_letters else None,
                late=late.stager() if late else None,
                poison=poison_of(config, spec),
                handler_timeout_ms=config.handler_timeout_ms or spec.handler_timeout_ms,
                calls=config.calls,
            )
        )
    return made


def start_query(spark: "SparkSession", pipeline: Pipeline, writer: Any) -> "StreamingQuery":
    """Start it on this session, with `writer` as its `foreachBatch`."""
    from catchwater.pipeline.spark.operator import operator
    from catchwater.pipeline.spark.source import PackedSource

    config = pipeline.config
    option = source_settings(pipeline).to_option()
    spark.dataSource.register(PackedSource)
    rows = spark.readStream.format(PackedSource.name()).options(**option).load()
    for stage in stages(pipeline):
        rows = rows.repartition(config.tasks, "label").mapInArrow(operator(stage), rows.schema)
    query = rows.writeStream.foreachBatch(writer).queryName(pipeline.name)
    query = query.option("checkpointLocation", str(config.checkpoint))
    if config.trigger == AVAILABLE_NOW:
        query = query.trigger(availableNow=True)
    elif config.trigger != CONTINUOUS:
        query = query.trigger(processingTime=config.trigger)
    return query.start()


def source_settings(pipeline: Pipeline) -> "PackedSettings":
    """What the source is told."""
    from catchwater.pipeline.spark.source import PackedSettings

    config = pipeline.config
    return PackedSettings(
        options=config.source_options,
        checkpoint=str(config.checkpoint),
        functions=list(pipeline.codes),
        labels=shard_labels(config.shard_count),
        tasks=config.tasks,
        record_key_is_function_key=config.record_key_is_function_key,
        idle_timeout_ms=config.idle_timeout_ms,
        inputs={topic: name for name, topic in config.inputs.items()},
        tables=dict(config.tables),
        table_options=config.table_options,
        until=config.until,
        waits=config.trigger == CONTINUOUS,
    )


def poison_of(config: PipelineConfig, spec: FunctionSpec) -> Poison:
    """What becomes of records that a function cannot handle. The limit is the driver's business."""
    return Poison(config.poison or spec.poison.policy, None)


def sweep_cache(checkpoint: Path) -> None:
    """Note whose shards lie in this machine's cache; those of checkpoints that are gone leave it.

    A checkpoint that comes back, as on a disk that is mounted later, has its shards built again. No
    start fails for it: what cannot be deleted now can be by the next one.
    """
    mine = _cached(checkpoint)
    with suppress(OSError):
        mine.mkdir(parents=True, exist_ok=True)
        (mine / _OWNER).write_bytes(os.fsencode(checkpoint.resolve()))
        for owner in mine.parent.glob(f"*/{_OWNER}"):
            named = Path(os.fsdecode(owner.read_bytes()))
            if named.is_absolute() and not named.exists() and owner.parent == _cached(named):
                shutil.rmtree(owner.parent, ignore_errors=True)


def _cached(checkpoint: Path) -> Path:
    return session.cache_folder() / "shards" / _digest(checkpoint)


def _digest(checkpoint_folder: Path) -> str:
    return hashlib.sha256(os.fsencode(checkpoint_folder.resolve())).hexdigest()[:16]
