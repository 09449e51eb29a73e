"""`catchwater config check`: a configuration file read as its user would read it."""

import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from catchwater.cli.console import AsJson, print_json, print_table
from catchwater.config import load_broker_config

app = typer.Typer(rich_markup_mode=None, no_args_is_help=True)


@app.callback()
def config() -> None:
    """Check configuration files."""
