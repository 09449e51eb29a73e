"""What commands find through a pipeline's file: settings, savepoints, and the log it reads."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.pipeline.run.config import PipelineConfig
    from catchwater.recovery.checkpoint import Checkpoint
    from catchwater.recovery.contract import LogState, PartitionTail
    from catchwater.recovery.intact import Look
    from catchwater.recovery.savepoint.storage import Shelf
    from catchwater.replay.control import Control


class NotOurLog(CatchwaterError):
    """The command needs the control API of a Catchwater log, and the source is another Kafka."""


def load_here(file: Path) -> "PipelineConfig":
    """The pipeline's file with this environment over it. Raises `ConfigError`."""
    from catchwater.pipeline.run.config import load

    return load(file, os.environ)


def look_here(file: Path) -> "tuple[PipelineConfig, Look]":
    """The pipeline's file, and what the files of its checkpoint say. Raises `ConfigError` only.

    Where one of them is damaged it is among the `problems`, and the rest is there.
    """
    from catchwater.pipeline.run import backfill, identity, versions
    from catchwater.pipeline.run.config import read
    from catchwater.pipeline.supervisor.supervise import read_supervision
    from catchwater.recovery.handover import followed
    from catchwater.recovery.intact import look
    from catchwater.recovery.lock import SUPERVISOR, holder

    config = read(file, os.environ)
    checkpoint, _ = followed(config.checkpoint)
    readers = (
        identity.read, versions.load, backfill.begun, read_supervision,
        partial(holder, name=SUPERVISOR),
    )  # fmt: skip
    return replace(config, checkpoint=checkpoint), look(checkpoint, readers)


def shelf_of(config: "PipelineConfig", at: str | None) -> "Shelf":
    """Where savepoints lie: at this URL, or else where the file says. Asks no broker."""
    from catchwater.clock import SYSTEM
    from catchwater.pipeline.change.around import shelf_url
    from catchwater.recovery.savepoint.storage import Shelf

    return Shelf.at(at or shelf_url(config), SYSTEM)


def control_of(config: "PipelineConfig") -> "Control":
    """The control API of the log that the pipeline reads. Raises `NotOurLog`."""
    from catchwater.replay.control import Control
    from catchwater.replay.options import parse_options
    from catchwater.replay.subscription import Subscription

    subscription = Subscription(parse_options(config.source_options))
    try:
        url = subscription.log_control_url()
    finally:
        subscription.close()
    if url is None:
        raise NotOurLog("The pipeline's source is a Kafka without Catchwater's control API.")
    return Control(url, timeout_s=10.0)


def tails_of(
    config: "PipelineConfig", checkpoints: "Iterable[Checkpoint]"
) -> "dict[tuple[str, int], PartitionTail]":
    """What the log, ours or another Kafka, holds now of the topics that these checkpoints read."""
    topics = {topic for each in checkpoints for topic in each.end.needed}
    return dict(state_of(config, sorted(topics), {}).tails) if topics else {}


def state_of(
    config: "PipelineConfig", topics: "Sequence[str]", sink_epochs: "Mapping[str, int | None]"
) -> "LogState":
    """What a contract is compared with; another Kafka has no pins."""
    from catchwater.recovery.contract import LogState
    from catchwater.recovery.pins import kafka_tails, read_log_state
    from catchwater.replay.options import parse_options

    try:
        return read_log_state(control_of(config), topics, sink_epochs)
    except NotOurLog:
        options = parse_options(config.source_options)
        tails = kafka_tails(options.bootstrap, topics, options.security)
        return LogState(tails, {}, sink_epochs)
