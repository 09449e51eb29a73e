"""An executor in a pod of Kubernetes: its JVM's command, by what Spark says in its environment.

Spark starts the image with the argument `executor`, and leaves the rest to the image's entry point:
a script in Spark's own images, which the package `pyspark` lacks. Here `catchwater` is that entry
point, for drivers too, and so finds Java and Spark's jars where a driver finds them. Relies on the
names that Spark 4.3 gives to what it says.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from catchwater.config import CatchwaterError, Restart

_CLASS = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
_OPTION = re.compile(r"SPARK_JAVA_OPT_(\d+)")
_ARGUMENTS = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
_MEMORY = "SPARK_EXECUTOR_MEMORY"


class NoExecutor(CatchwaterError):
    """This process was not started by Spark to be an executor."""

    exit_code = 2
    restart = Restart.NEVER


def command(environment: Mapping[str, str], java: Path, jars: Path) -> list[str]:
    """The executor's command, with `java`, of the jars in this folder. Raises `NoExecutor`."""
    missing = [each for each in (*_ARGUMENTS.values(), _MEMORY) if not environment.get(each)]
    if missing:
        raise NoExecutor(
            f"Spark has started no executor here: {', '.join(missing)} is not set.",
            hint="It starts them in pods of their own, for catchwater pipeline run: docs/spark.md.",
        )
    options = {int(found[1]): environment[found[0]] for found in map(_OPTION.fullmatch, environment)
               if found}  # fmt: skip
    classes = [
        *(environment.get(each, "") for each in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR")),
        f"{jars}/*", environment.get("SPARK_CLASSPATH", ""),
    ]  # fmt: skip
    arguments = [part for name, of in _ARGUMENTS.items() for part in (name, environment[of])]
    return [
        str(java), *(options[number] for number in sorted(options)),
        f"-Xmx{environment[_MEMORY]}", "-cp", os.pathsep.join(filter(None, classes)),
        _CLASS, *arguments,
    ]  # fmt: skip
