"""What the demo asks of its pipeline."""

from pathlib import Path

from catchwater.demo.run import PIPELINE_FILE
from catchwater.demo.scenarios import LEAST_EPOCHS
from catchwater.pipeline.run.config import load


def test_no_epoch_of_a_demo_is_forgotten_before_a_slow_watcher_has_counted_it(
    tmp_path: Path,
) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(
        PIPELINE_FILE.format(
            function="catchwater.demo.card_risk:CardRisk", folder=tmp_path, epoch_events=1,
            bootstrap="127.0.0.1:9092", topic="payments", output_topic="alerts",
        )
    )  # fmt: skip
    assert load(file, {}).retain >= 4 * LEAST_EPOCHS
