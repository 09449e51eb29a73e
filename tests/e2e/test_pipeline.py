"""A pipeline on real Spark gives what the harness gives, whatever is killed on the way."""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from catchwater.demo.card_risk import CardRisk, Txn
from catchwater.drill.rows import canonical
from catchwater.testing import Harness

KILLS = int(os.environ.get("KILLS", "2"))
"""Drivers killed; `make e2e` takes twenty."""
EPOCH_EVENTS = 12_000 // (4 * KILLS)
"""A kill costs an epoch or two; the input has to last for all of them."""

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_the_harness_gives_what_a_plain_loop_gives(cards: Any) -> None:
    decode = msgspec.json.Decoder(Txn).decode
    outputs = Harness(CardRisk).run(decode(event.value) for event in cards.scenario.events())
    assert Counter(canonical(msgspec.to_builtins(output)) for output in outputs) == cards.expected


@pytest.mark.slow
def test_a_driver_killed_again_and_again_still_writes_each_row_once(
    make_pipeline: Callable[[str], Any],
) -> None:
    pipeline = make_pipeline("killed")
    draw = random.Random(10)
    for kill in range(KILLS):
        pipeline.start(epoch_events=EPOCH_EVENTS)
        epoch = pipeline.committed + 1
        if kill % 2:
            pipeline.wait_until(lambda epoch=epoch: pipeline.is_written(epoch))
        else:
            pipeline.wait_until(lambda epoch=epoch: pipeline.is_planned(epoch + 1))
        # Somewhere in an epoch: read, processed, staged, committed to the sink or to Spark.
        time.sleep(draw.uniform(0, 0.3))
        pipeline.kill()
    assert pipeline.run_to_end(epoch_events=EPOCH_EVENTS) == 0, pipeline.log
    assert pipeline.rows == pipeline.cards.expected


def test_killed_at_every_turn_a_pipeline_still_writes_each_row_once(
    make_pipeline: Callable[[str], Any],
) -> None:
    pipeline = make_pipeline("battered")

    # The driver dies between the sink's commit and Spark's; the machine's local state is lost.
    pipeline.start()
    pipeline.wait_until(lambda: pipeline.is_written(6))
    pipeline.kill()
    pipeline.lose_local_state()

    # A Python worker dies: Spark tries the task again, nobody notices.
    pipeline.start()
    pipeline.wait_until(lambda: pipeline.is_planned(8))
    for worker in pipeline.python_workers()[:2]:
        os.kill(worker, signal.SIGKILL)
    pipeline.wait_until(lambda: pipeline.committed >= 9)
    assert pipeline.stop() == 0, pipeline.log

    # Spark's last commit file is lost: the epoch runs again, under its own name.
    before = pipeline.rows
    pipeline.delete_last_commit()
    assert pipeline.run_to_end() == 0, pipeline.log
    assert before <= pipeline.rows
    assert pipeline.rows == pipeline.cards.expected
