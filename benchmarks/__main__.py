"""`python -m benchmarks [NAME ...]`: run all benchmarks, or those that are named."""

import importlib
import sys

NAMES = ("produce", "replay", "function", "catalog", "partitions")

if __name__ == "__main__":
    wanted = sys.argv[1:] or list(NAMES)
    unknown = [name for name in wanted if name not in NAMES]
    if unknown:
        sys.exit(f"error: no benchmark named {', '.join(unknown)}; there are {', '.join(NAMES)}")
    for name in wanted:
        importlib.import_module(f"benchmarks.bench_{name}").main()
