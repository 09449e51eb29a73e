"""A broker whose gate denies what a file says, a line for each: `READ secret`.

Arguments are the file, then the command that would start the broker otherwise. The file is read
whenever the gate is asked, so that a test can deny what was allowed before.
"""

import sys
from pathlib import Path
from unittest.mock import patch

from catchwater.broker.gate import AllowAll, Operation, Resource
from catchwater.broker.main import run
from catchwater.config import load_broker_config


def main() -> None:
    denied, _, *command = sys.argv[1:]
    assert command[:2] == ["broker", "run"], command

    def may(self: AllowAll, principal: str, operation: Operation, resource: Resource) -> bool:
        return f"{operation} {resource.name}" not in Path(denied).read_text().splitlines()

    settings = dict(argument.split("=", 1) for argument in command[2:])
    with patch.object(AllowAll, "may", may):
        run(load_broker_config(None, {}, settings))


if __name__ == "__main__":
    main()
