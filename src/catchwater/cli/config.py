"""`catchwater config check`: reads a configuration file exactly as its command would."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from catchwater.cli.console import AsJson, noun, print_json, print_table

app = noun()


class Kind(StrEnum):
    """The command that a configuration file is for."""

    BROKER = "broker"
    PIPELINE = "pipeline"


@app.callback()
def config() -> None:
    """Check configuration files."""


@app.command()
def check(
    file: Annotated[Path, typer.Argument(show_default=False)],
    kind: Annotated[
        Kind | None, typer.Option(help="Whose file it is; otherwise its sections tell.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Read a file as its command would, and print every setting.

    The environment's settings are over the file's. Exit 2 if something is wrong.
    """
    settings = _pipeline(file) if (kind or _guess(file)) is Kind.PIPELINE else _broker(file)
    if as_json:
        print_json(settings)
    else:
        print_table(["setting", "value"], list(settings.items()))


def _guess(file: Path) -> Kind:
    """A pipeline's file is TOML with a [pipeline] section; any other is read as a broker's."""
    try:
        document = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return Kind.BROKER
    return Kind.PIPELINE if "pipeline" in document else Kind.BROKER


def _broker(file: Path) -> dict[str, Any]:
    from catchwater.broker_config import TABLES, load_broker_config, masked

    settings = load_broker_config(file, os.environ)
    shown = {
        key: _plain(masked(key, getattr(settings, field.name)))
        for field in fields(settings)
        for key in (field.name.replace("_", "."),)
    }
    properties = settings.catchwater_tables_catalog
    of_tables = {key: masked(f"{TABLES}{key}", value) for key, value in properties}
    return shown | {"catchwater.tables.catalog": of_tables}


def _pipeline(file: Path) -> dict[str, Any]:
    from catchwater.pipeline.run.config import load

    settings = load(file, os.environ)
    return {field.name: _plain(getattr(settings, field.name)) for field in fields(settings)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return [_plain(each) for each in value]
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value if isinstance(value, str | int) or value is None else str(value)
