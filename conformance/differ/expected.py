"""The differences that are meant, from a TOML file: where, and why.

A `[[difference]]` has a `reason` and patterns (`*` for anything): `api` and `case` by name, `path`
of the field; and, where given, an `error`: the code that both replies have around it. One that fits
explains the difference.
"""

import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple


class Expected(NamedTuple):
    """One explanation; a pattern that is left out fits everything."""

    reason: str
    api: str = "*"
    case: str = "*"
    path: str = "*"
    error: int | None = None

    def explains(self, difference: Any, versions: Sequence[int]) -> bool:
        """Whether a `Found` lies within the patterns."""
        return (
            fnmatchcase(difference.api, self.api)
            and fnmatchcase(difference.case, self.case)
            and fnmatchcase(difference.path, self.path)
            and self.error in (None, difference.error)
        )


def read_expected(path: Path) -> list[Expected]:
    """The explanations in the order of the file, which is the order they are tried in."""
    return [Expected(**each) for each in tomllib.loads(path.read_text()).get("difference", [])]
