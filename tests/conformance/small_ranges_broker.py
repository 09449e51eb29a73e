"""A broker whose plans cut objects every few kilobytes, as they cut large ones by megabytes.

Its argument is the command that would start the broker otherwise.
"""

import sys
from unittest.mock import patch

from catchwater.broker.main import run
from catchwater.broker_config import load_broker_config
from catchwater.log.format import segment
from catchwater.log.read import history


def main() -> None:
    _, *command = sys.argv[1:]
    assert command[:2] == ["broker", "run"], command
    settings = dict(argument.split("=", 1) for argument in command[2:])
    with (
        patch.object(history, "PIECE_BYTES", 2_000),
        patch.object(history, "PLAN_RANGE_BYTES", 4_000),
        patch.object(segment, "INDEX_STRIDE_BYTES", 1_000),
        patch.object(segment, "CLEANED_STRIDE_BYTES", 1_000),
    ):
        run(load_broker_config(None, {}, settings))


if __name__ == "__main__":
    main()
