"""Errors every command can print, and the reading of configuration."""


class CatchwaterError(Exception):
    """An operating error: a full sentence for the user, and what to do next where we know it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint
