"""`python -m benchmarks [NAME ...]`: run all benchmarks, or those that are named.

`soak` and `chaos` take MINUTES and judge instead of compare; they run only when they are named.
"""

import importlib
import sys

from benchmarks.measure import full_page_cache

NAMES = (
    "produce",
    "pack",
    "latency",
    "lagging",
    "records",
    "replay",
    "replay_live",
    "tables",
    "decoder",
    "functions",
    "sinks",
    "catalog",
    "partitions",
    "watched",
    "access",
    "secured",
    "restart",
    "estimate",
    "recovery",
    "microbatch",
    "idle",
    "operator",
    "state",
    "cluster",
)
LONG = ("soak", "chaos")

if __name__ == "__main__":
    wanted = sys.argv[1:] or list(NAMES)
    unknown = [name for name in wanted if name not in NAMES + LONG]
    if unknown:
        there_are = ", ".join(NAMES + LONG)
        sys.exit(f"error: no benchmark named {', '.join(unknown)}; there are {there_are}")
    with full_page_cache():
        for name in wanted:
            module = name if name in LONG else f"bench_{name}"
            importlib.import_module(f"benchmarks.{module}").main()
