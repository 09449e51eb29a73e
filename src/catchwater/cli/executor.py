"""`catchwater executor`: what Spark has a pod of Kubernetes do, where `catchwater` is its image's
entry point.
"""

import os

from catchwater.cli.console import noun

app = noun(has_verbs=False)


@app.command()
def executor() -> None:
    """Be an executor of Spark's. Nobody types this: Spark starts it in pods of Kubernetes.

    Which one it is, and of what, is in its environment. Exit 2 where that says nothing.
    """
    from catchwater.pipeline.spark.executor import command
    from catchwater.pipeline.spark.session import check_packages, find_java, spark_home

    check_packages()
    java = find_java().home / "bin" / "java"
    # In this process's place, so that the pod's end is the executor's.
    os.execv(java, command(os.environ, java, spark_home() / "jars"))
