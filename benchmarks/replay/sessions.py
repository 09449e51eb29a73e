"""Spark sessions in processes of their own, so that two Sparks can take turns."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.kafka_jars import CACHE, ROOT, SPARK_PEER_VERSION, jars

PEER = f"Spark {SPARK_PEER_VERSION} Kafka connector"


def peer_python() -> Path:
    """An environment with the connector's pyspark, made once under `.cache`."""
    folder = CACHE / f"pyspark-{SPARK_PEER_VERSION}"
    python = folder / "bin" / "python"
    if not python.exists():
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], check=True)
        packages = [f"pyspark=={SPARK_PEER_VERSION}", "pandas<3", "pyarrow"]
        subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True)
    return python


class Session:
    """One session that answers a query at a time; on the given processors only, if any."""

    def __init__(self, *, ours: bool, processors: str | None = None, cores: int = 2) -> None:
        python = Path(sys.executable) if ours else peer_python()
        found = "" if ours else ",".join(str(path) for path in sorted(jars("connector").glob("*")))
        bound = [] if processors is None else ["taskset", "-c", processors]
        command = [*bound, python, ROOT / "benchmarks" / "replay" / "child.py", str(cores), found]
        environment = {**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, env=environment, cwd=ROOT,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        self._errors.seek(0)
        said = self._errors.read().decode()[-3000:]
        raise RuntimeError(f"the Spark session ended before it answered:\n{said}")

    def ask(self, kind: str, query: str, bootstrap: str, topic: str) -> dict[str, float]:
        """Run a query of the child; seconds, CPU seconds of its processes, and the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([kind, query, bootstrap, topic]) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)
        self._errors.close()
