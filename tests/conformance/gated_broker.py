"""A broker whose gate denies what a file says, a line for each: `READ secret`.

Arguments are the file, then the command that would start the broker otherwise. The file is read
whenever the gate is asked, so that a test can deny what was allowed before.
"""

import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

from catchwater.broker import main as broker_main
from catchwater.broker.broker import Broker
from catchwater.broker.gate import AllowAll, Operation, Resource, ResourceType
from catchwater.broker_config import load_broker_config
from catchwater.web.pages import Page

EVERYTHING = "*"
"""As a line: nobody may do anything."""


def main() -> None:
    denied, _, *command = sys.argv[1:]
    assert command[:2] == ["broker", "run"], command

    class Denying(AllowAll):
        def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
            said = Path(denied).read_text().splitlines()
            return EVERYTHING not in said and f"{operation} {resource.name}" not in said

        def may_with_any(self, principal: str, operation: Operation, kind: ResourceType) -> bool:
            return EVERYTHING not in Path(denied).read_text().splitlines()

    settings = dict(argument.split("=", 1) for argument in command[2:])
    with patch.object(broker_main, "Broker", partial(Broker, gate=Denying())):
        broker_main.run(load_broker_config(None, {}, settings), Page)


if __name__ == "__main__":
    main()
