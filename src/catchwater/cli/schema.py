"""`catchwater schema …`: classes for events out of a schema, and whether the two fit."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from catchwater.cli.console import noun, talk
from catchwater.config import CatchwaterError, ConfigError

if TYPE_CHECKING:
    from catchwater.values.registry import Registered, RegistryClient

app = noun()

_LOGIN = "CATCHWATER_SCHEMA_REGISTRY_LOGIN"

Schema = Annotated[
    str,
    typer.Argument(
        metavar="SCHEMA",
        show_default=False,
        help="The path of an Avro schema, a JSON Schema or a Protobuf descriptor set, or with "
        "--registry a subject such as payments-value.",
    ),
]
RegistryUrl = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL",
        show_default=False,
        help=f"A schema registry; its login, user:password, is read from {_LOGIN}.",
    ),
]


@app.callback()
def schema() -> None:
    """Make classes for events out of a schema, and check that the two fit."""


@app.command()
def pull(
    named: Schema,
    registry: RegistryUrl = None,
    name: Annotated[
        str | None,
        typer.Option("--class", metavar="NAME", help="The class's name, else the record's."),
    ] = None,
    message: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of a Protobuf file: the message's full name."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write there, and not over what is there."),
    ] = None,
) -> None:
    """Print the Python of the classes that a schema's values become."""
    from catchwater.values.classes import classes_of
    from catchwater.values.subjects import as_avro

    source = classes_of(*as_avro(_read(named, registry), message), name=name)
    if output is None:
        typer.echo(source, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(source)
    except FileExistsError:
        raise CatchwaterError(
            f"{output} is there already.", hint="Name another file, or remove that one."
        ) from None
    talk(f"{output} has the classes of {named}.")


@app.command()
def check(
    named: Schema,
    function: Annotated[
        str, typer.Argument(metavar="MODULE:CLASS", help="A function, or the class of events.")
    ],
    registry: RegistryUrl = None,
) -> None:
    """See whether values of a schema become events of a class: exit code 4 if they do not.

    Fields are compared by name, and values made up by the schema are read as events. Of a subject
    all versions are looked at, and what its compatibility lets the next one leave out.
    """
    from catchwater.state.records import from_plain
    from catchwater.values.subjects import refused

    declared = _declared(function)
    versions = {named: _read(named, registry)} if registry is None else _versions(named, registry)
    wrong = {which: refused(found, declared, from_plain) for which, found in versions.items()}
    for which, why in wrong.items():
        if why is None:
            typer.echo(f"Values of {which} are events of {declared.__name__}.")
        else:
            typer.echo(f"Values of {which} are not all events of {declared.__name__}: {why}")
    if registry is not None:
        _say_what_may_come(named, registry, declared)
    if any(wrong.values()):
        raise typer.Exit(4)


def _versions(subject: str, registry: str) -> "dict[str, Registered]":
    """Every schema of a subject, the newest first."""
    _read(subject, registry)
    found = sorted(_client(registry).versions(subject).items(), reverse=True)
    return {f"{subject} version {number}": each for number, each in found}


def _say_what_may_come(subject: str, registry: str, declared: type) -> None:
    from catchwater.values.subjects import may_drop

    level = _client(registry).level(subject)
    fields = ", ".join(may_drop(level, declared))
    if fields:
        talk(
            f"{subject} is {level}: its next schema may leave out {fields}, which "
            f"{declared.__name__} must have. FORWARD or FULL would refuse such a schema; a default "
            "in the class would do without the field."
        )


def _read(named: str, registry: str | None) -> "Registered":
    if registry is None:
        try:
            return _of_file(Path(named).read_bytes())
        except OSError as error:
            raise ConfigError(
                f"The schema {named} cannot be read: {error.strerror}.",
                hint="Give the path of a schema, or --registry URL and a subject.",
            ) from error
    try:
        return _client(registry).latest(named)[1]
    except LookupError as error:
        raise ConfigError(
            f"{error}.", hint="Subjects are named TOPIC-value and TOPIC-key by default."
        ) from error


def _of_file(content: bytes) -> "Registered":
    """A schema, whose kind its content tells: Avro's types are other words than JSON Schema's."""
    from catchwater.values.registry import Registered

    try:
        text = content.decode()
        schema = json.loads(text)
    except ValueError:
        if b"syntax" in content[:2000] and b"message " in content:
            raise ConfigError(
                "It is the source of a Protobuf file.",
                hint="Make a descriptor set: protoc --include_imports --descriptor_set_out=FILE "
                "NAME.proto",
            ) from None
        from catchwater.values.descriptors import registered

        return registered(content)
    is_json = isinstance(schema, dict) and {"$schema", "properties", "$ref"} & schema.keys()
    return Registered("JSON" if is_json else "AVRO", text)


def _client(registry: str) -> "RegistryClient":
    from catchwater.values.registry import RegistryClient
    from catchwater.values.settings import Registry

    return RegistryClient(Registry(registry, login=os.environ.get(_LOGIN, "")))


def _declared(function: str) -> type:
    from catchwater.pipeline.functions.spec import is_record
    from catchwater.pipeline.run.versions import find_function, find_module

    module, _, name = function.partition(":")
    found = getattr(find_module(module, Path.cwd()), name, None) if name else None
    if found is not None and is_record(found):
        return found  # type: ignore[no-any-return]
    return find_function(function, Path.cwd()).event_type  # type: ignore[no-any-return]
