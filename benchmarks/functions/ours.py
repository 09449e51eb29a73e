"""The card rule on Catchwater: an Apache Kafka in, the same Kafka out, each epoch written once."""

import sys
from pathlib import Path

from benchmarks.functions.peers import PER_EPOCH, Contestant, Job

FUNCTION = '''"""A large payment soon after a tiny one."""
from dataclasses import dataclass

from catchwater import Context, Keyed, Out, function

@dataclass
class Txn:
    card: str
    id: str
    at: int
    amount: float

@dataclass
class Alert:
    card: str
    id: str
    rule: str

@dataclass
class Risk:
    small_at: int = 0

@function(name="card-rule", version=1, key="card", event_time="at", watermark="30s")
class CardRule(Keyed[Txn, Risk, Alert]):
    def on_event(self, e: Txn, s: Risk, ctx: Context) -> Out[Alert]:
        out = ()
        if e.amount > 500 and s.small_at and e.at - s.small_at < 60_000:
            out = [Alert(e.card, e.id, "small-then-large")]
        if e.amount < 1:
            s.small_at = e.at
        return out
'''
PIPELINE = """[pipeline]
name = "{group}"
function = "card_rule:CardRule"
checkpoint = "checkpoint"
local = "local"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{source}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {per_epoch}
recordKeyIsFunctionKey = true
[sink.alerts]
kind = "kafka"
"kafka.bootstrap.servers" = "{bootstrap}"
topic = "{target}"
[recovery]
retain = 5
"""


def _commands(job: Job) -> list[tuple[list[str], dict[str, str]]]:
    (job.folder / "card_rule.py").write_text(FUNCTION)
    file = job.folder / "pipeline.toml"
    named = {"group": job.group, "bootstrap": job.bootstrap, "source": job.source}
    file.write_text(PIPELINE.format(**named, target=job.target, per_epoch=PER_EPOCH))
    return [([str(Path(sys.executable).with_name("catchwater")), "pipeline", "run", str(file)], {})]


CATCHWATER = Contestant("Catchwater", _commands)
