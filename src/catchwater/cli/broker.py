"""`catchwater broker run`: one broker in this process until SIGTERM or Ctrl-C."""

import os
from pathlib import Path
from typing import Annotated

import typer

from catchwater.cli.console import noun

app = noun()


@app.callback()
def broker() -> None:
    """Run a broker."""


@app.command()
def run(
    settings: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings, by the keys of the file."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(help="Settings: Kafka's server.properties syntax, or TOML if it ends so."),
    ] = None,
    data: Annotated[Path | None, typer.Option(help="The data directory (log.dirs).")] = None,
    kafka_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Kafka's port on 127.0.0.1; 0: a free one.")
    ] = None,
    control_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="The control API's port; 0: a free one.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option(help="Let other machines in without TLS (catchwater.insecure).")
    ] = False,
    ready_file: Annotated[
        Path | None, typer.Option(help="Where to write the addresses once both ports are open.")
    ] = None,
) -> None:
    """Run a broker until SIGTERM or Ctrl-C.

    What is given here wins over the environment (CATCHWATER_BROKER__…), and that over the file.
    """
    from catchwater.broker.main import run as run_broker
    from catchwater.broker_config import load_broker_config
    from catchwater.web.pages import Page

    chosen = {
        "log.dirs": data,
        "listeners": None if kafka_port is None else f"PLAINTEXT://127.0.0.1:{kafka_port}",
        "catchwater.control.listener": (
            None if control_port is None else f"127.0.0.1:{control_port}"
        ),
        "catchwater.ready.file": ready_file,
        "catchwater.insecure": "true" if insecure else None,
    }
    overrides = dict(setting.partition("=")[::2] for setting in settings or ())
    overrides |= {key: str(value) for key, value in chosen.items() if value is not None}
    run_broker(load_broker_config(config, os.environ, overrides), Page)
