"""What the programs in Python share: which records are written, and how steps are told.

A program is given bootstrap address, prefix and steps. A step passes by returning; whatever it
raises ends the process with its message on stderr, and the runner starts another for the rest.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from types import TracebackType

Step = Callable[[], None] | str
"""A function, or the reason why the client cannot take the step."""

DEADLINE_S = 40.0
WRITTEN = [(f"k{i % 7}".encode(), f"{i}:{'water' * 8}".encode()) for i in range(100)]
BOOTSTRAP, PREFIX = [*sys.argv, "", ""][1:3]


def main(steps: Mapping[str, Step]) -> None:
    """Take the steps that the command line names, one line each."""
    sys.excepthook = _end
    for name in sys.argv[3:]:
        step = steps.get(name, "the library has no such call")
        if isinstance(step, str):
            print(f"skip {name} {step}", flush=True)
        else:
            step()
            print(f"pass {name}", flush=True)
    os._exit(0)  # some libraries have threads that outlive their clients


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    traceback.print_exception(kind, error, trace)
    where = traceback.extract_tb(trace)[-1]
    text = str(error).splitlines()[0] if str(error) else ""
    print(f"{kind.__name__}: {text} ({where.name}: {where.line})", file=sys.stderr, flush=True)
    os._exit(1)


def until(is_so: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Ask again until it is so. The question should take some of the time itself."""
    deadline = time.monotonic() + deadline_s
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {deadline_s:.0f} s")
        time.sleep(0.02)


def same(found: object, wanted: object, what: str) -> None:
    """Raise unless both are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: {str(found)[:80]} instead of {str(wanted)[:80]}")
