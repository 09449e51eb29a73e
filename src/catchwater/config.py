"""Errors every command can print, and what all files of settings have in common.

A setting's value may refer to something instead of holding a secret:

    ${env:NAME}              a variable of the environment
    ${file:PATH:KEY}         a key of a properties file
    ${directory:PATH:FILE}   a file's whole text, as a secret of Kubernetes is mounted

The words are those of Kafka's configuration providers. With `folders` a path has to lie in one of
these, links followed, so that who may write a setting cannot read whatever the process can.
"""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SHOWN = "[hidden]"
"""In the place of a secret."""
_KEY = re.compile(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*(.*)", re.S)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.S)
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_REFERENCE = re.compile(r"\$\{(\w+):(?:([^}]*):)?([^}:]*)\}")
_SECRET_KEY = re.compile(
    r"(^|\.)(password|secret)$|\.key$|^catchwater\.tables\.catalog\..*(token|credential|-key)"
)
_SECRET_OPTION = re.compile(r"(password|secret|user_\w+)\s*=", re.I)
"""In a `jaas.config`, which without one is no secret."""
_OTHERS_MAY_READ = 0o004


class Restart(StrEnum):
    """Whether a pipeline is started again after an error. Never after exit codes 2 and 5."""

    AGAIN = "again"
    """A transient error: an unavailable broker, a killed process."""
    ONCE = "once"
    """Once: the cause may be the machine, but more likely the input or a target."""
    FALL_BACK = "fall back"
    """Once, from an intact checkpoint: a file is damaged."""
    NEVER = "never"
    """A permanent error."""


class CatchwaterError(Exception):
    """An operating error: a full sentence for the user, and a hint on what to do next if known."""

    exit_code = 1
    restart: Restart = Restart.AGAIN

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
        if hint:
            # Spark shows users a traceback and nothing of an error's fields, but also its notes.
            self.add_note(f"hint: {hint}")


class ConfigError(CatchwaterError):
    """A configuration that cannot be used; names the file, the line and the key."""

    exit_code = 2


# --- the grammar of files -------------------------------------------------------------------------


def flatten(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys from any spelling: `a.b = 1`, `"a.b" = 1` or `[section.a] b = 1`."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def toml_line(text: str, key: str) -> int:
    """The line where the key, or its last part, is set; TOML's parser has no positions."""
    last = re.escape(key.rpartition(".")[2])
    pattern = re.compile(rf'^\s*(\[.*\b{last}\b.*\]|"?(?:[\w."-]+\.)?{last}"?\s*=)')
    numbered = enumerate(text.splitlines(), start=1)
    return next((number for number, line in numbered if pattern.match(line)), 1)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name that is most similar to this one."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]


_UNITS_MS = {
    "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
    "w": 604_800_000,
}  # fmt: skip
_DURATION = re.compile(rf"(\d{{1,15}})\s*({'|'.join(_UNITS_MS)})")


def duration_ms(text: str, name: str = "") -> int:
    """Milliseconds of a duration such as "500ms", "30s", "10 m", "1d".

    Every duration that users write is parsed here. Raises ValueError for other texts, with the
    `name` of the setting.
    """
    match = _DURATION.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        of = f"{name}=" if name else ""
        raise ValueError(f"{of}{text!r} is not a duration: write a number and ms, s, m, h, d or w")
    return int(match[1]) * _UNITS_MS[match[2]]


# --- references and secrets -----------------------------------------------------------------------


class BadReference(ValueError):
    """A reference names nothing, or what it may not name; no message quotes a secret."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def resolve(
    value: str,
    environment: Mapping[str, str],
    folder: Path,
    folders: Sequence[Path] | None = None,
) -> str:
    """The value with what it refers to; paths are meant from `folder`. Raises `BadReference`."""

    def looked_up(reference: re.Match[str]) -> str:
        provider, path, key = reference[1], reference[2] or "", reference[3]
        match provider:
            case "env" if key in environment:
                return environment[key]
            case "env":
                raise BadReference(f"{reference[0]} names no variable of the environment.")
            case "file":
                properties = read_properties(_allowed(folder / path, folders))
                if key not in properties:
                    raise BadReference(f"{reference[0]}: there is no {key!r} in {folder / path}.")
                return properties[key]
            case "directory":
                return _text(_allowed(folder / path / key, folders)).removesuffix("\n")
        raise BadReference(
            f"{reference[0]} names a provider that does not exist.",
            hint="There are ${env:NAME}, ${file:PATH:KEY} and ${directory:PATH:FILE}.",
        )

    return _REFERENCE.sub(looked_up, value)


def has_reference(value: str) -> bool:
    """Whether the value refers to something."""
    return _REFERENCE.search(value) is not None


def is_secret(key: str, value: object) -> bool:
    """Whether the setting holds a secret: by its key, or as a password in a URL."""
    if not isinstance(value, str) or not value:
        return False
    if _SECRET_KEY.search(key) or (key.endswith("jaas.config") and _SECRET_OPTION.search(value)):
        return True
    try:
        return "://" in value and urlsplit(value).password is not None
    except ValueError:
        return False


def refuse_readable(path: Path) -> None:
    """Raise `BadReference` for a file with secrets that everybody on the machine may read."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if mode & _OTHERS_MAY_READ:
        raise BadReference(
            f"{path} holds a secret and can be read by everybody on this machine.",
            hint=f"chmod 600 {path}",
        )


def _allowed(path: Path, folders: Sequence[Path] | None) -> Path:
    if folders is None:
        return path
    real = path.resolve()
    if not any(real.is_relative_to(each.resolve()) for each in folders):
        allowed = ", ".join(map(str, folders))
        raise BadReference(
            f"{path} lies in no folder that references may name: {allowed}.",
            hint="Name the folder in catchwater.secret.folders, or put the file into one of these.",
        )
    refuse_readable(real)
    return real


def read_properties(path: Path) -> dict[str, str]:
    """Key → value. Raises `BadReference` for a file that cannot be read."""
    found = (_KEY.fullmatch(line) for line in _lines(_text(path)))
    return {_plain(each[1]): _plain(each[2]) for each in found if each}


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadReference(
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
