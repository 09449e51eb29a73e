"""Contracts are honoured: pins hold the input, the oldest checkpoint restores, sinks stay as is.

Without Spark, whose part is none here: `test_pipeline` and `test_supervisor` are with it.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import PipelineHere, feed_cards, pipelines

from catchwater.demo import card_risk
from catchwater.recovery import checkpoint, contract, pins, rewind
from catchwater.recovery.contract import HistoryGone

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture(scope="module")
def cards(make_broker: Callable[..., Any]) -> Any:
    """Of its own: the input is let go at the end."""
    return feed_cards(make_broker)


@pytest.fixture(scope="module")
def make_pipeline(
    cards: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Any]]:
    yield from pipelines(cards, tmp_path_factory)


@pytest.fixture(scope="module")
def finished(make_pipeline: Callable[[str], Any]) -> Any:
    """A pipeline that has consumed the whole input, and stopped."""
    pipeline = PipelineHere.like(make_pipeline("careful"), None)
    assert pipeline.run_to_end() == 0, pipeline.log
    assert pipeline.rows == pipeline.cards.expected
    return pipeline


def test_every_retained_checkpoint_has_a_contract_that_holds(finished: Any) -> None:
    retained = checkpoint.read(finished.checkpoint).retained(5)
    contracts = contract.load_contracts(finished.checkpoint)
    assert [each.epoch for each in contracts] == [each.epoch for each in retained]
    control = finished.cards.control
    epochs = {"alerts": control.last_epoch("careful", "alerts")["epoch"]}
    state = pins.read_log_state(control, ["payments"], epochs)
    for each in contracts:
        findings = contract.check(each, state)
        assert {finding.verdict for finding in findings} == {"pass"}, findings
    assert contracts[-1].replay_records == 0
    assert contracts[0].replay_records > 0
    assert contracts[0].state.bytes > 0
    assert contracts[-1].sinks["alerts"].topic == "careful-alerts"


def test_another_version_of_the_function_is_refused_before_spark_starts(finished: Any) -> None:
    assert card_risk.__file__ is not None
    text = Path(card_risk.__file__).read_text()
    (finished.folder / "card_risk_v3.py").write_text(text.replace("version=2", "version=3"))
    assert finished.run_to_end(function="card_risk_v3:CardRisk") == 5
    assert "the function's version was 2 and is now 3" in finished.log


def test_a_new_checkpoint_under_the_name_of_an_old_pipeline_is_refused(
    finished: Any, make_pipeline: Callable[[str], Any]
) -> None:
    newcomer = PipelineHere.like(make_pipeline("newcomer"), None)
    assert newcomer.run_to_end(name="careful", topic="careful-alerts") == 5
    assert "the sink 'alerts' has epochs up to" in newcomer.log.lower()


def test_a_lost_commit_file_changes_nothing_in_the_sink(finished: Any) -> None:
    last = finished.committed
    finished.delete_last_commit()
    assert finished.run_to_end() == 0, finished.log
    assert finished.committed == last
    assert finished.rows == finished.cards.expected


def test_the_oldest_of_five_checkpoints_restores_though_retention_is_a_second(
    finished: Any,
) -> None:
    control, folder = finished.cards.control, finished.checkpoint
    oldest = checkpoint.read(folder).retained(5)[0]
    pinned = oldest.end.offsets["payments"]
    last = finished.committed

    # Other pipelines' pins, and what functions need of the past, held the input; now only this
    # pipeline's checkpoints do.
    for pin in control.pins():
        if not pin["id"].startswith("careful/") or pin["id"].endswith("/history"):
            control.release_pin(pin["id"])
    deadline = time.monotonic() + 300
    while True:
        tails = pins.read_tails(control, ["payments"])
        if any(tail.log_start > 0 for tail in tails.values()):
            break
        assert time.monotonic() < deadline, tails
        time.sleep(0.1)
    assert all(tails["payments", int(p)].log_start <= offset for p, offset in pinned.items())

    rewind.rewind(folder, oldest.epoch, tails)
    finished.lose_local_state()
    assert finished.run_to_end() == 0, finished.log
    assert finished.committed >= last
    assert finished.rows == finished.cards.expected

    # What no pin holds any more cannot be gone back to, and both offsets are said.
    begun = finished.ledger.beginning()
    assert begun is not None
    with pytest.raises(HistoryGone, match="from offset 0 on, and the log begins at offset"):
        contract.check_covered(begun, tails)
