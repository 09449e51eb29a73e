"""What it costs the produce path to walk the records of every batch before it is acknowledged.

Two brokers of ours take the same requests in alternating turns: one as it is, and one that believes
its producers. What counts is the ratio of the CPU they use; it is to be at most 1.05 for batches
that are not compressed. Compressed ones have to be unfolded, which costs what it costs; the share
of it that runs beside the event loop does not slow others down.
"""

import sys
import time
from pathlib import Path

from benchmarks.bench_produce import SHAPES
from benchmarks.load import (
    NOW_MS,
    create_topic,
    frame_of_batch,
    produce_request,
    pump,
)
from benchmarks.measure import Row, publish, row
from benchmarks.our_broker import Broker, catchwater_broker
from catchwater.wire.arrow import encode_batch
from catchwater.wire.codecs import Codec

SECONDS, ROUNDS = 0.3, 15
"""Many short turns: on a shared machine what disturbs one seldom disturbs its neighbour alike."""
TOPIC = "bench"
TARGET = 1.05
LOADING_S = 60.0
BELIEVING = [sys.executable, "-m", "benchmarks.bench_records", "--believe"]
WORDS = b"water weir sluice gauge flood level basin culvert intake outfall ".split()


def words(seed: int, size_bytes: int) -> bytes:
    """Text that compresses about as well as JSON lines do, 1 to 4."""
    parts, total = [], 0
    while total < size_bytes:
        seed = seed * 6364136223846793005 + 1442695040888963407 & (1 << 64) - 1
        parts.append(WORDS[seed >> 60 & 7] if seed >> 59 & 1 else b"%d" % (seed >> 44))
        total += len(parts[-1]) + 1
    return b" ".join(parts)[:size_bytes]


def compressed(codec: Codec, value_bytes: int, records: int) -> bytes:
    """A Produce request with one batch of different records."""
    rows = [(b"%d" % i, words(i, value_bytes), NOW_MS, ()) for i in range(records)]
    return frame_of_batch(TOPIC, 0, encode_batch(rows, codec=codec))


def requests() -> dict[str, tuple[bytes, int, float | None]]:
    """By claim: the request, how many are in flight, and the aim."""
    shapes = {
        f"{claim}, uncompressed": (produce_request(TOPIC, 0, size, count), in_flight, TARGET)
        for claim, (size, count, in_flight) in SHAPES.items()
    }
    shapes["produce, 64 KB requests of 100 B records, 8 in flight"] = (
        produce_request(TOPIC, 0, 100, 600), 8, None,
    )  # fmt: skip
    for codec in list(Codec)[1:]:
        name = codec.name.lower()
        for size, count, in_flight in ((100, 1, 80), (1000, 64, 8), (1000, 900, 4)):
            what = "100 B" if count == 1 else f"{count} KB before compression"
            request = compressed(codec, size, count)
            shapes[f"{name}, {what}, {in_flight} in flight"] = request, in_flight, None
    return shapes


def cpu_seconds(pid: int) -> float:
    """What all threads of a process have used, to the nanosecond; `measure`'s is by ticks."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def cost(broker: Broker, request: bytes, in_flight: int) -> float:
    """CPU seconds per million requests of one turn."""
    before = cpu_seconds(broker.pid)
    result = pump(broker.bootstrap, request, SECONDS, in_flight)
    return (cpu_seconds(broker.pid) - before) / result.requests * 1e6


def compare(request: bytes, in_flight: int, ours: Broker, theirs: Broker) -> list[list[float]]:
    """What both cost, turn by turn; the first two are not counted."""
    taken: list[list[float]] = [[], []]
    for turn in range(ROUNDS + 2):
        pair = [(0, ours), (1, theirs)]
        for which, broker in pair if turn % 2 else pair[::-1]:
            taken[which].append(cost(broker, request, in_flight))
    return [each[2:] for each in taken]


def wait_until_compiled(broker: Broker) -> None:
    """A broker loads its compiled loop under its first load."""
    deadline = time.monotonic() + LOADING_S
    pump(broker.bootstrap, produce_request(TOPIC, 0, 100, 600), 1.0, 8)
    while "llvmlite" not in Path(f"/proc/{broker.pid}/maps").read_text():
        if time.monotonic() > deadline:
            raise RuntimeError("The broker walks plainly; is numba installed?")
        time.sleep(0.1)
    idle, used = 0.0, cpu_seconds(broker.pid)
    while idle < 1.0:  # loading it has come to its end when the broker rests
        time.sleep(0.5)
        before, used = used, cpu_seconds(broker.pid)
        idle = idle + 0.5 if used - before < 0.05 else 0.0


def both(request: bytes, in_flight: int) -> list[list[float]]:
    """What a request costs on two brokers of its own: a shape may write ten gigabytes."""
    with catchwater_broker() as walks, catchwater_broker(command=BELIEVING) as believes:
        for broker in (walks, believes):
            create_topic(broker.bootstrap, TOPIC, 1)
        wait_until_compiled(walks)
        return compare(request, in_flight, walks, believes)


def main() -> None:
    """Run every shape, publish."""
    rows: list[Row] = []
    for claim, (request, in_flight, target) in requests().items():
        ours, theirs = both(request, in_flight)
        unit, peer = "CPU s/M requests", "records not looked at"
        rows.append(row(claim, unit, ours, peer, theirs, target=target, better="lower"))
        publish("records", rows)


def believe() -> None:
    """Be a broker that does not look into batches."""
    from catchwater.cli import main as catchwater
    from catchwater.log.write import prepare
    from catchwater.wire import batch

    batch.walk = lambda *_, **__: (0, 0, 0, 0, 0)  # every record of ours has its batch's time
    prepare.prepared = lambda header, data, *_, **__: (header, data)
    prepare.effort = lambda *_: 0
    prepare.PLAIN_FACTOR = 1
    prepare.LOAD_AFTER_RECORDS = sys.maxsize
    sys.argv = [str(Path(sys.executable).with_name("catchwater")), *sys.argv[2:]]
    catchwater()


if __name__ == "__main__":
    believe() if "--believe" in sys.argv else main()
