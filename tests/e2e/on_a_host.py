"""A pipeline's driver half as a process of its own, without Spark, in its turn: FILE and a pause.

    python -m tests.e2e.on_a_host pipeline.toml 0.5

It waits as a spare does, runs to the end of the input with a pause behind each epoch, and ends with
the exit code that the command would have.
"""

import logging
import os
import sys
import time
from contextlib import closing
from pathlib import Path

from tests.e2e import in_session

from catchwater.clock import SYSTEM
from catchwater.config import CatchwaterError
from catchwater.pipeline.run import config, run
from catchwater.pipeline.run.driver import Stop
from catchwater.recovery.folder import Lock


def main(file: Path, pause_s: float) -> int:
    """The exit code."""
    settings = config.load(file, os.environ)
    try:
        with closing(Lock(settings.checkpoint, lease_ms=settings.lease_ms)) as held:
            run._acquire(settings, held, Stop(), SYSTEM)
            pipeline = in_session.Pipeline(
                None, file.parent, file, between=lambda epoch: time.sleep(pause_s)
            )
            pipeline.run()
    except CatchwaterError as error:
        print(f"error: {error}", flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    sys.exit(main(Path(sys.argv[1]), float(sys.argv[2])))
