"""What commands find through a pipeline's file: its settings, and the log that it reads."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.pipeline.run.config import PipelineConfig
    from catchwater.recovery.checkpoint import Checkpoint
    from catchwater.recovery.contract import PartitionTail
    from catchwater.replay.control import Control


class NotOurLog(CatchwaterError):
    """The command needs the control API of a Catchwater log, and the source is another Kafka."""


def load_here(file: Path) -> "PipelineConfig":
    """The pipeline's file with this environment over it. Raises `ConfigError`."""
    from catchwater.pipeline.run.config import load

    return load(file, os.environ)


def control_of(config: "PipelineConfig") -> "Control":
    """The control API of the log that the pipeline reads. Raises `NotOurLog`."""
    from catchwater.replay.control import Control
    from catchwater.replay.options import parse_options
    from catchwater.replay.subscription import Subscription

    subscription = Subscription(parse_options(config.source))
    try:
        url = subscription.control_url()
    finally:
        subscription.close()
    if url is None:
        raise NotOurLog(
            "The pipeline's source is read as a Kafka without Catchwater's control API."
        )
    return Control(url, timeout_s=10.0)


def tails_of(
    config: "PipelineConfig", checkpoints: "Iterable[Checkpoint]"
) -> "dict[tuple[str, int], PartitionTail]":
    """What the log holds now of the topics that these checkpoints read."""
    from catchwater.recovery.pins import read_tails

    topics = {topic for each in checkpoints for topic in each.end.needed}
    return read_tails(control_of(config), sorted(topics)) if topics else {}
