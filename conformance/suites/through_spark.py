"""Spark's own Kafka connector: a topic read as a stream, in a few batches, into another topic.

Runs in the environment of the connector's pyspark, which has none of our packages. Stdin is JSON:
`options` of source and sink, the topics `from` and `to`, a folder for `checkpoint`, `jars`.
"""

import json
import sys

from pyspark.sql import SparkSession

AT_ONCE = 5_000


def main() -> None:
    told = json.load(sys.stdin)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.jars", told["jars"])
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    lines = (
        spark.readStream.format("kafka")
        .options(**told["options"])
        .options(subscribe=told["from"], startingOffsets="earliest", maxOffsetsPerTrigger=AT_ONCE)
        .load()
    )
    query = (
        lines.select("key", "value")
        .writeStream.format("kafka")
        .options(**told["options"])
        .options(topic=told["to"], checkpointLocation=told["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
