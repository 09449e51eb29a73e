"""A child process: a pipeline on a small cluster of which one executor is killed in mid-run.

Spark has one context a process, and that of the tests is local. Prints the number of executors
that were killed.
"""

import os
import signal
import sys
from pathlib import Path

from tests.e2e.in_session import Pipeline

from catchwater.pipeline.spark import session


def executors() -> list[int]:
    """The JVMs that run tasks, descendants of this process."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            command = (path / "cmdline").read_bytes()
            leader = int((path / "stat").read_text().rpartition(")")[2].split()[3])
        except OSError:
            continue
        if b"CoarseGrainedExecutorBackend" in command and leader == os.getsid(0):
            found.append(int(path.name))
    return found


def main(folder: Path) -> None:
    """Run the pipeline in the folder to its end, killing an executor after epoch 3."""
    killed = []

    def kill(epoch: int) -> None:
        if epoch == 3:
            killed.append(executors()[0])
            os.kill(killed[0], signal.SIGKILL)

    with (folder / "spark.log").open("ab") as log:
        conf = {"spark.master": "local-cluster[2,1,1024]", "spark.executor.memory": "1g"}
        spark = session.start("lost-executor", quick=True, log=log, conf=conf)
        pipeline = Pipeline(spark, folder, folder / "pipeline.toml", between=kill)
        try:
            pipeline.run()
        finally:
            session.stop(spark)
    print(len(killed))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
