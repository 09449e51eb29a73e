"""The card rule on Catchwater and on what else one would pick, over one Apache Kafka topic.

Rounds alternate contestant by contestant, ours first. Every contestant reads the topic from its
start for at most MOST_S seconds behind its first alert. Ours and Spark's own operator take
micro-batches of 500,000 events, seconds each, which suits catching up and not latency. Ours writes
every alert exactly once, the peers at least once. PEERS="streams quix" chooses; without it all run.
ROUNDS, KEYS and EVENTS have their defaults below, and RESTARTS=0 leaves out what follows the kill.
"""

import os
import tempfile
from pathlib import Path

from benchmarks.functions import race
from benchmarks.functions.ours import CATCHWATER
from benchmarks.functions.peers import PEERS, Contestant, Job
from benchmarks.kafka_peer import apache_kafka
from benchmarks.measure import Row, publish, row

EVENTS = int(os.environ.get("EVENTS", "4000000"))
MOST_S = 20.0
KEYS = tuple(map(int, os.environ.get("KEYS", "100000 1000000").split()))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
RESTARTS = os.environ.get("RESTARTS", "1") == "1"
TARGETS = {"per-key": 30.0, "streams": 2.0, "quix": 6.0, "bytewax": 6.0, "flink": 6.0}
MORE = {("streams", 100_000): 2.7}
"""Where fewer keys are asked for more."""


def one(contestant: Contestant, job: Job) -> race.Figures:
    """One run of one contestant."""
    figures = race.run(contestant, job, EVENTS, MOST_S, is_restarted=RESTARTS)
    rate, cpu = figures.events_per_s, figures.cpu_s_per_million
    told = f"{job.group}: {rate:,.0f} events/s, {cpu:.1f} CPU s/M, "
    print(told + f"restore {figures.restore_s:.1f} s, {figures.twice} alerts twice", flush=True)
    return figures


def main() -> None:
    """Fill the topics, let all take turns, publish."""
    chosen = os.environ.get("PEERS", "").split() or list(PEERS)
    rows = []
    with (
        apache_kafka(stamp_on_append=True) as (bootstrap, _),
        tempfile.TemporaryDirectory() as scratch,
    ):
        for keys in KEYS:
            source = f"payments-{keys}"
            race.fill(bootstrap, source, keys, EVENTS)
            found: dict[str, list[race.Figures]] = {name: [] for name in ["ours", *chosen]}
            for turn in range(ROUNDS):
                for name in found:
                    contestant = CATCHWATER if name == "ours" else PEERS[name]
                    label = f"{name}-{keys}-{turn}"
                    folder = Path(scratch) / label
                    job = Job(bootstrap, source, f"alerts-{label}", label, folder)
                    found[name].append(one(contestant, job))
            rows += [each for name in chosen for each in rows_of(name, keys, found)]
            publish("functions", rows, is_whole=False)


def rows_of(name: str, keys: int, found: dict[str, list[race.Figures]]) -> list[Row]:
    """What one peer is held against: rate, CPU, restart."""
    ours, theirs = found["ours"], found[name]
    peer, what = PEERS[name].name, f"stateful function, {keys:,} keys"

    def compared(claim: str, unit: str, field: str, target: float | None, better: str):
        figures = [[getattr(each, field) for each in side] for side in (ours, theirs)]
        return row(
            f"{what}: {claim}", unit, figures[0], peer, figures[1], target=target, better=better
        )

    target = MORE.get((name, keys), TARGETS[name])
    rows = [
        compared("events from topic to alert", "events/s", "events_per_s", target, "higher"),
        compared("CPU", "CPU s/M events", "cpu_s_per_million", None, "lower"),
    ]
    if RESTARTS:
        rows.append(compared("kill -9 to the first new alert", "s", "restore_s", None, "lower"))
    return rows


if __name__ == "__main__":
    main()
