"""A child process: the pipelines of several folders on one Spark session, side by side.

One process that is killed is then a kill of each of them, wherever in its epoch it is. With
`--cluster` tasks run on two executors of their own. It ends when all have consumed their input.
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from pyspark.java_gateway import ensure_callback_server_started
from tests.e2e.in_session import Pipeline

from catchwater.pipeline.run.driver import zygote
from catchwater.pipeline.spark import session

CLUSTER = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "1g"}


def main(cluster: bool, folders: list[Path]) -> None:
    """Run them to their ends; raises what failed the first that failed."""
    with (
        (folders[0].parent / "spark.log").open("ab") as log,
        nullcontext(sys.executable) if cluster else zygote([]) as python,
    ):
        conf = CLUSTER if cluster else {}
        spark = session.start("all at once", quick=True, log=log, python=python, conf=conf)
        try:
            # Queries that start side by side would each start one.
            ensure_callback_server_started(spark.sparkContext._gateway)
            pipelines = [Pipeline(spark, each, each / "pipeline.toml") for each in folders]
            with ThreadPoolExecutor(len(folders)) as threads:
                for run in [threads.submit(pipeline.run) for pipeline in pipelines]:
                    run.result()
        finally:
            session.stop(spark)


if __name__ == "__main__":
    main("--cluster" in sys.argv, [Path(each) for each in sys.argv[1:] if each[0] != "-"])
