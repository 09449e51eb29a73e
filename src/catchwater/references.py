"""What a setting's value may refer to instead of holding a secret, and which settings are secrets.

    ${env:NAME}              a variable of the environment
    ${file:PATH:KEY}         a key of a properties file
    ${directory:PATH:FILE}   a file's whole text, as a secret of Kubernetes is mounted

The words are those of Kafka's configuration providers. With `folders` a path has to lie in one of
these, links followed, so that who may write a setting cannot read whatever the process can.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
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
