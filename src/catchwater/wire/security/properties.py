"""Java's properties files, as Kafka's clients read them, and what their values refer to.

`read_properties` is `java.util.Properties`: `#` and `!` begin remarks, a backslash at a line's end
goes on in the next one, `=`, `:` or a blank ends a key, the later of two equal keys counts.

`resolve` is Kafka's configuration providers (KIP-297, KIP-632, KIP-887), so that a secret need not
stand where a setting does: `${env:NAME}`, `${file:PATH:KEY}` (of a properties file) and
`${directory:PATH:FILE}` (a file's whole text). No error quotes a value.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from catchwater.config import ConfigError

_KEY = re.compile(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*(.*)", re.S)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.S)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_REFERENCE = re.compile(r"\$\{(\w+):(?:([^}]*):)?([^}:]*)\}")


def read_properties(path: Path) -> dict[str, str]:
    """Key → value. Raises `ConfigError` for a file that cannot be read."""
    found = (_KEY.fullmatch(line) for line in _lines(_text(path)))
    return {_plain(each[1]): _plain(each[2]) for each in found if each}


def resolve(value: str, environment: Mapping[str, str], folder: Path) -> str:
    """The value with what it refers to; paths are meant from `folder`. Raises `ConfigError`."""

    def looked_up(reference: re.Match[str]) -> str:
        provider, path, key = reference[1], reference[2] or "", reference[3]
        match provider:
            case "env" if key in environment:
                return environment[key]
            case "env":
                raise ConfigError(f"{reference[0]} names no variable of the environment.")
            case "file":
                properties = read_properties(folder / path)
                if key not in properties:
                    raise ConfigError(f"{reference[0]}: there is no {key!r} in {folder / path}.")
                return properties[key]
            case "directory":
                return _text(folder / path / key).removesuffix("\n")
        raise ConfigError(
            f"{reference[0]} names a provider that does not exist.",
            hint="There are ${env:NAME}, ${file:PATH:KEY} and ${directory:PATH:FILE}.",
        )

    return _REFERENCE.sub(looked_up, value)


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"The file {path} cannot be read: {error}.", hint="Name an existing UTF-8 text file."
        ) from error


def _lines(text: str) -> Iterator[str]:
    """Logical lines, without remarks and empty ones."""
    whole = ""
    for line in text.splitlines():
        part = line.lstrip()
        if not whole and (not part or part[0] in "#!"):
            continue
        whole += part
        backslashes = len(whole) - len(whole.rstrip("\\"))
        if backslashes % 2:
            whole = whole[:-1]
            continue
        yield whole
        whole = ""
    if whole:
        yield whole


def _plain(text: str) -> str:
    def unescaped(found: re.Match[str]) -> str:
        name = found[1]
        return chr(int(name[1:], 16)) if len(name) == 5 else _CONTROLS.get(name, name)

    return _ESCAPE.sub(unescaped, text)
