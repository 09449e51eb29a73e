"""A command typed in this process, and a checkpoint for it to look at."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from catchwater.cli import main
from catchwater.recovery.contract import (
    Contract,
    FunctionVersion,
    PartitionTail,
    Terms,
    compute,
    write_contract,
)
from catchwater.recovery.ledger import EpochEntry, Ledger, ShardEpoch, SinkEpoch, SourceOffset


class Answer(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Type = Callable[..., Answer]


@pytest.fixture
def catchwater(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Type:
    """Type `catchwater` with these arguments."""

    def type_in(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["catchwater", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        told = capsys.readouterr()
        return Answer(int(left.value.code or 0), told.out, told.err)

    return type_in


@pytest.fixture(autouse=True)
def _functions_are_found_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command is a process of its own, which finds no function of another test."""
    others = [each for each in sys.path if (Path(each) / "card_risk.py").exists()]
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each not in others])
    sys.modules.pop("card_risk", None)
    yield
    sys.modules.pop("card_risk", None)


@pytest.fixture
def pipeline_file(tmp_path: Path) -> Path:
    """A pipeline's file beside a checkpoint with epochs 0 to 2 committed and 3 planned."""
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE)
    folder = tmp_path / "checkpoint"
    ledger = Ledger(folder)
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True)
    for epoch in range(4):
        end = offset_at(epoch)
        line = msgspec.json.encode(end).decode()
        (folder / "offsets" / str(epoch)).write_text(f'v1\n{{"batchTimestampMs":{epoch}}}\n{line}')
        if epoch < 3:
            (folder / "commits" / str(epoch)).write_text("v1\n{}")
            shard = ShardEpoch(
                0, events=10, outputs=2, duplicates=1, keys=4, state_bytes=50, delta_bytes=20,
                restore_s=0.5, operator_ms=12.5,
            )  # fmt: skip
            sink = SinkEpoch("alerts", 2, "c", {"0": (2 * epoch + 1, 2 * epoch + 2)})
            entry = EpochEntry(
                epoch, offset_at(epoch - 1), end, [shard], {"alerts": sink}, 1_000,
                run_ms=42.5, sink_ms={"alerts": 4.5},
            )  # fmt: skip
            ledger.write(entry)
            write_contract(folder, contract_of(entry))
    return file


PIPELINE = """
[pipeline]
function = "card_risk:CardRisk"
checkpoint = "checkpoint"
[source]
"kafka.bootstrap.servers" = "127.0.0.1:1"
subscribe = "payments"
[sink.alerts]
topic = "alerts"
"""


def offset_at(epoch: int) -> SourceOffset:
    """Ten records an epoch."""
    return SourceOffset(
        epoch, {"payments": {"0": 10 * (epoch + 1)}}, [1_000 * epoch], 5_000 * epoch
    )


def contract_of(entry: EpochEntry) -> Contract:
    """A contract written when the topic ended at offset 100."""
    terms = Terms("card-risk", [FunctionVersion("card-risk", 2, "abc")], 0, 600.0, {})
    tails = {("payments", 0): PartitionTail(0, 100, 1_000)}
    return compute(entry, tails, terms, [], oldest_clock_ms=0, now_ms=10_000)
