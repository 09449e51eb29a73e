"""`catchwater txn …`: the transactions of any Kafka broker, over the Kafka protocol."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import (
    HERE,
    AsJson,
    Bootstrap,
    CommandConfig,
    Yes,
    client_of,
    noun,
    print_rows,
    talk,
)
from catchwater.config import CatchwaterError

if TYPE_CHECKING:
    from catchwater.wire.client import Client

app = noun()


class NoSuchTransactionalId(CatchwaterError):
    """The transactional id does not exist."""


@app.callback()
def txn() -> None:
    """List transactions, and abort one that hangs."""


@app.command("list")
def list_transactions(
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    as_json: AsJson = False,
    is_open: Annotated[bool, typer.Option("--open", help="Only what is open now.")] = False,
) -> None:
    """List every transactional id with its producer id and its state."""
    with _client(bootstrap, command_config) as client:
        rows = [
            (name, producer_id, state)
            for name, (producer_id, state) in sorted(client.transactions().items())
            if state == "Ongoing" or not is_open
        ]
    columns = ["transactional_id", "producer_id", "state"]
    print_rows(columns, rows, as_json=as_json)


@app.command()
def abort(
    transactional_id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    yes: Yes = False,
) -> None:
    """Abort the open transaction of a transactional id.

    Readers of committed records then go on. Its producer is fenced: one that still runs under that
    id is refused from then on.
    """
    with _client(bootstrap, command_config) as client:
        if transactional_id not in client.transactions():
            raise NoSuchTransactionalId(
                f"There is no transactional id {transactional_id}.", hint="catchwater txn list"
            )
        if not yes:
            question = f"Abort what {transactional_id} has open and fence its producer?"
            typer.confirm(question, abort=True, err=True)
        client.init_producer_id(transactional_id)
    talk(f"{transactional_id} has nothing open any more")


def _client(bootstrap: str, command_config: Path | None) -> "Client":
    return client_of(bootstrap, command_config, name="catchwater-txn", timeout_s=10.0)
