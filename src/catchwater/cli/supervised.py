"""A pipeline's driver as a child process under a supervisor in this one."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from catchwater.cli.console import talk

if TYPE_CHECKING:
    from catchwater.pipeline.run.config import PipelineConfig

_MAIN = "from catchwater.cli import main; main()"
"""What a child process runs; its arguments follow."""


def supervised(file: Path, config: "PipelineConfig", flags: Sequence[str]) -> None:
    """Run the pipeline until it ends or a signal comes; start it again when it fails."""
    from catchwater.pipeline.spark.session import make_class_archive_later
    from catchwater.pipeline.spark.zygote import zygote
    from catchwater.pipeline.supervisor.supervise import RESTARTS, Wanted, supervise

    command = [sys.executable, "-c", _MAIN, "pipeline", "run", str(file), "--stand-by", *flags]
    restarts = RESTARTS if config.restarts is None else config.restarts
    # The supervisor's, so that a driver that is started again finds it ready.
    with zygote([str(config.folder)]) as shared:
        command += ["--python", shared]
        supervise(Wanted(command, config.checkpoint, restarts, config.spare))
    if "--quick" not in flags and make_class_archive_later():
        talk("preparing faster starts in the background: once, some 40 s of CPU time")
