"""A child process: a state of so many keys is loaded, changed, rebuilt, and expires all at once.

Prints the most anonymous memory (MiB) up to the end of each part, as JSON.
"""

import json
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bench_state import peak
from tests.e2e.in_the_operator import Operator
from tests.e2e.kept import HOUR_MS, Keeps, Note

from catchwater.pipeline.functions.declare import spec_of

EPOCH_EVENTS, SHARDS = 10_000, 4


def notes(numbers: Iterator[int] | range | list[int]) -> Iterator[Note]:
    """One for each of these keys."""
    return (Note(f"key-{number}", 1) for number in numbers)


def main(folder: Path, keys: int) -> None:
    """Do what the module says."""
    operator, draw = Operator(spec_of(Keeps), folder, SHARDS), random.Random(1)
    told = {}
    with peak() as anonymous_mib:
        for first in range(0, keys, EPOCH_EVENTS):
            operator.run(notes(range(first, min(first + EPOCH_EVENTS, keys))))
            if operator.epochs % 20 == 0:
                operator.sweep()
        told["loaded"] = max(anonymous_mib)
        for _ in range(20):
            operator.run(notes(draw.sample(range(keys), EPOCH_EVENTS)))
        assert operator.keys == keys, operator.keys
        told["changed"] = max(anonymous_mib)
        shutil.rmtree(folder / "local")
        assert sum(each.rebuilt_bytes for each in operator.run()) > keys * 100
        told["rebuilt"] = max(anonymous_mib)
        watermark_ms = 3 * HOUR_MS
        while any(each.next_due_ms for each in operator.run([], watermark_ms)):
            pass
        assert operator.keys == 0, operator.keys
        told["expired"] = max(anonymous_mib)
    print(json.dumps(told))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
