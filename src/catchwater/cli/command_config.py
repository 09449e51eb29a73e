"""`--command-config FILE`: how a command that takes a broker's address is to reach it.

The name and the file are those of Kafka's own tools: a properties file of client settings, of
which those on security are obeyed; values may refer to the environment and to other files.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from catchwater.wire.client import Client
    from catchwater.wire.security.settings import Security

CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        envvar="CATCHWATER_COMMAND_CONFIG",
        metavar="FILE",
        help="A properties file of client settings: security.protocol, sasl.*, ssl.*.",
    ),
]

_PREFIXED = re.compile(r"\bkafka\.(?=(?:security|sasl|ssl)\.)")


def client_of(bootstrap: str, config: Path | None, *, name: str, timeout_s: float) -> "Client":
    """A client of this broker; `name` is what brokers know it by. Raises `ConfigError`."""
    from catchwater.wire.client import Client
    from catchwater.wire.security.settings import UNSECURED

    security = UNSECURED if config is None else load_security(config)
    return Client(bootstrap, client_id=name, timeout_s=timeout_s, security=security)


def load_security(file: Path) -> "Security":
    """The security settings of a client's properties file; its other settings are ignored.

    Raises `ConfigError`, which names the file and the properties as they stand in it.
    """
    from catchwater.config import ConfigError
    from catchwater.wire.security.settings import PREFIXES, parse_security, read_properties, resolve

    found = {f"kafka.{key}": value for key, value in read_properties(file).items()}
    try:
        return parse_security(
            {
                key: resolve(value, os.environ, Path())
                for key, value in found.items()
                if key.startswith(PREFIXES)
            }
        )
    except ConfigError as error:
        hint = _PREFIXED.sub("", error.hint) if error.hint else None
        raise ConfigError(f"{file}: {_PREFIXED.sub('', str(error))}", hint=hint) from error
