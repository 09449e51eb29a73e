"""Starts one broker after another by fork, so that a hundred starts cost the imports once.

Arguments are settings (key=value). For every line on stdin a broker is forked, and its pid is
printed; it runs once a further byte comes, so that a tracer can be attached first. When it has
ended, its wait status is printed.
"""

import os
import sys

from catchwater.broker.main import run
from catchwater.broker_config import load_broker_config


def main() -> None:
    config = load_broker_config(None, {}, dict(a.split("=", 1) for a in sys.argv[1:]))
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.read(0, 1)
            run(config)
            os._exit(0)
        print(pid, flush=True)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main()
