"""`catchwater access …`: a broker's file of users and rules, changed with or without a broker.

Brokers take over what is changed within a second. Passwords come from a file, standard input or the
terminal, never from the command line, where others would see them.
"""

import getpass
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from catchwater.cli.console import AsJson, noun, print_rows, talk
from catchwater.config import CatchwaterError

app = noun()

AccessFile = Annotated[
    Path, typer.Option("--file", help="The file (catchwater.access.file); it is created.")
]
_HERE = Path("access.json")


class Kind(StrEnum):
    """What a rule is about."""

    TOPIC = "topic"
    GROUP = "group"
    CLUSTER = "cluster"
    TRANSACTIONAL_ID = "transactional-id"


class BadPassword(CatchwaterError):
    """There is no password, or it cannot be one."""

    exit_code = 2


@app.callback()
def access() -> None:
    """Say who may log in at a broker, and what they may do."""


@app.command()
def user(
    name: Annotated[str, typer.Argument(help="The user's name.", show_default=False)],
    file: AccessFile = _HERE,
    password_file: Annotated[
        Path | None, typer.Option(help="Where the password stands; - or none: standard input.")
    ] = None,
) -> None:
    """Make a user, or give one another password."""
    from catchwater.broker.access import change, with_user
    from catchwater.wire.security.verifiers import verifiers

    kept = verifiers(_password(name, password_file))
    change(file, lambda now: with_user(now, name, kept))
    talk(f"{name} can log in by the password. What User:{name} may do, rules say (access allow).")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="The user's name.", show_default=False)],
    file: AccessFile = _HERE,
) -> None:
    """Remove a user; the user's rules stay."""
    from catchwater.broker.access import change, with_user

    change(file, lambda now: with_user(now, name, None))
    talk(f"{name} cannot log in any more; connections of the user end within a second.")


Principal = Annotated[str, typer.Argument(help="Such as User:alice; User:* is everybody.")]
Operations = Annotated[
    str, typer.Argument(help="Kafka's operation, such as READ; several: READ,WRITE.")
]
KindArgument = Annotated[Kind, typer.Argument(help="What it is about.")]
Name = Annotated[str, typer.Argument(help="Its name; * is all.")]
Prefixed = Annotated[bool, typer.Option(help="All whose names begin so.")]
Host = Annotated[str, typer.Option(help="The address of the client; * is any.")]


@app.command()
def allow(
    principal: Principal, operation: Operations, kind: KindArgument, name: Name = "*",
    prefixed: Prefixed = False, host: Host = "*", file: AccessFile = _HERE,
) -> None:  # fmt: skip
    """Let somebody do something."""
    _add("ALLOW", principal, operation, kind, name, prefixed, host, file)


@app.command()
def deny(
    principal: Principal, operation: Operations, kind: KindArgument, name: Name = "*",
    prefixed: Prefixed = False, host: Host = "*", file: AccessFile = _HERE,
) -> None:  # fmt: skip
    """Forbid somebody something; no other rule can allow it."""
    _add("DENY", principal, operation, kind, name, prefixed, host, file)


@app.command()
def revoke(principal: Principal, file: AccessFile = _HERE) -> None:
    """Take back all rules of somebody."""
    from catchwater.broker.access import change, without_rules

    change(file, lambda now: without_rules(now, lambda rule: rule.principal == principal))
    talk(f"There is no rule for {principal} any more.")


@app.command("list")
def list_rules(file: AccessFile = _HERE, as_json: AsJson = False) -> None:
    """List users and rules."""
    from catchwater.broker.access import read

    now = read(file)
    rows = [(f"User:{name}", "LOGIN", "", "", "", "", "*") for name in sorted(now.users)]
    rows += [
        (r.principal, r.permission, r.operation, str(r.type), r.name, r.pattern, r.host)
        for r in sorted(now.rules.all)
    ]
    columns = ["principal", "permission", "operation", "type", "name", "pattern", "host"]
    print_rows(columns, rows, as_json=as_json)


def _add(
    permission: str, principal: str, operations: str, kind: Kind, name: str, prefixed: bool,
    host: str, file: Path,
) -> None:  # fmt: skip
    from catchwater.broker.access import ALL, Access, Rule, change, with_rule
    from catchwater.broker.gate import THE_CLUSTER, Operation, ResourceType

    known = (*map(str, Operation), ALL)
    chosen = [each.strip().upper().replace("-", "_") for each in operations.split(",")]
    if wrong := [each for each in chosen if each not in known]:
        raise typer.BadParameter(f"there is no operation {wrong[0]}; there are {', '.join(known)}")
    if not principal.startswith("User:") or principal == "User:":
        raise typer.BadParameter("a principal is of the form User:name")
    resource = ResourceType(kind.name)
    named = THE_CLUSTER.name if resource is ResourceType.CLUSTER else name
    pattern = "PREFIXED" if prefixed else "LITERAL"

    def changed(now: Access) -> Access:
        for operation in chosen:
            rule = Rule(principal, permission, operation, resource, named, pattern, host)  # type: ignore[arg-type]
            now = with_rule(now, rule)
        return now

    change(file, changed)
    talk(f"{permission} {principal} {','.join(chosen)} {resource} {named} ({pattern}) from {host}.")


def _password(name: str, file: Path | None) -> str:
    if file is not None and str(file) != "-":
        text = file.read_text(encoding="utf-8")
    elif sys.stdin.isatty():
        text = getpass.getpass(f"Password of {name}: ")
    else:
        text = sys.stdin.read()
    password = text.rstrip("\r\n")
    if not password or "\0" in password or "\n" in password:
        raise BadPassword(
            "A password has at least one character, and is one line.",
            hint="Write it into a file and name that with --password-file.",
        )
    return password
