"""What the demo asks of its pipeline."""

from contextlib import ExitStack
from pathlib import Path

from catchwater.demo.run import job_of
from catchwater.demo.scenarios import LEAST_EPOCHS, card_payments
from catchwater.drill.platforms import OwnLog
from catchwater.drill.stage import Stage
from catchwater.pipeline.run.config import load


def test_no_epoch_of_a_demo_is_forgotten_before_a_slow_watcher_has_counted_it(
    tmp_path: Path,
) -> None:
    with ExitStack() as children:
        log = OwnLog(tmp_path, children)
        log.bootstrap = "127.0.0.1:9092"
        stage = Stage(job_of(card_payments(10, seed=1)), log, tmp_path, children)
    assert load(stage.write_file(), {}).retain >= 4 * LEAST_EPOCHS
