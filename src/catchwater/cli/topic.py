"""`catchwater topic …`: the topics of any Kafka broker, over the Kafka protocol."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import (
    HERE,
    AsJson,
    Bootstrap,
    CommandConfig,
    DryRun,
    Yes,
    agreed,
    client_of,
    noun,
    print_rows,
    talk,
)
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.wire.client import Client

app = noun()

Name = Annotated[str, typer.Argument(metavar="TOPIC", show_default=False)]


class NoSuchTopic(CatchwaterError):
    """The named topic does not exist."""


@app.callback()
def topic() -> None:
    """List, create, delete and describe topics."""


@app.command("list")
def list_topics(
    bootstrap: Bootstrap = HERE, command_config: CommandConfig = None, as_json: AsJson = False
) -> None:
    """List every topic with its number of partitions."""
    with _client(bootstrap, command_config) as client:
        cluster = client.metadata()
    rows = [(name, len(cluster.partitions(name))) for name in cluster.topics()]
    print_rows(["topic", "partitions"], rows, as_json=as_json)


@app.command()
def create(
    name: Name,
    partitions: Annotated[int, typer.Option("--partitions", "-p", min=1)] = 1,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic setting; repeatable."),
    ] = None,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    dry_run: DryRun = False,
) -> None:
    """Create a topic; one that exists already is left as it is."""
    settings = dict(_setting(text) for text in config or ())
    with _client(bootstrap, command_config) as client:
        if client.metadata([name]).partitions(name):
            talk(f"{name} exists already; nothing was changed")
        elif dry_run:
            talk(f"would create {name} with {partitions} partitions")
        else:
            client.create_topics({name: partitions}, settings)
            talk(f"created {name} with {partitions} partitions")


@app.command()
def delete(
    name: Name,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Delete a topic and all its records."""
    with _client(bootstrap, command_config) as client:
        _existing(client, name)
        if not agreed(f"delete {name} and all its records", dry_run=dry_run, yes=yes):
            return
        client.delete_topics([name])
    talk(f"deleted {name}")


@app.command()
def describe(
    name: Name,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show each partition's leader, first offset and end."""
    from catchwater.wire.client import EARLIEST, LATEST

    with _client(bootstrap, command_config) as client:
        leaders = _existing(client, name)
        keys = [(name, partition) for partition in leaders]
        first = client.list_offsets(dict.fromkeys(keys, EARLIEST))
        end = client.list_offsets(dict.fromkeys(keys, LATEST))
    rows = [(p, leader, first[name, p], end[name, p]) for p, leader in leaders.items()]
    columns = ["partition", "leader", "first_offset", "end_offset"]
    print_rows(columns, rows, as_json=as_json)


def _client(bootstrap: str, command_config: Path | None) -> "Client":
    return client_of(bootstrap, command_config, name="catchwater-topic", timeout_s=5.0)


def _existing(client: "Client", name: str) -> dict[int, int]:
    """The leader of each partition. Raises `NoSuchTopic`."""
    cluster = client.metadata([name])
    partitions = cluster.partitions(name)
    if not partitions:
        raise NoSuchTopic(f"There is no topic {name}.", hint="catchwater topic list")
    return {partition: cluster.leaders[name, partition] for partition in partitions}


def _setting(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE")
    return key, value
