"""What the last comparison of each sink with its staged outputs has found, kept for who asks.

Written by a running pipeline and by `catchwater sink verify`; belongs to this machine. A file that
cannot be read is as good as none: then nothing was compared.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from catchwater.recovery.ledger import FOLDER, LedgerDamaged, read_json, write_whole
from catchwater.verdicts import Compared


def load(folder: Path) -> list[Compared]:
    """The newest comparison of each sink."""
    with suppress(LedgerDamaged, OSError):
        return read_json(_file(folder), list[Compared]) or []
    return []


def keep(folder: Path, found: Iterable[Compared], sinks: Iterable[str]) -> None:
    """Keep these beside those of other sinks, as far as the pipeline still has those."""
    merged = {each.sink: each for each in (*load(folder), *found)}
    there = [merged[name] for name in sinks if name in merged]
    write_whole(_file(folder), msgspec.json.encode(there))


def _file(folder: Path) -> Path:
    return folder / FOLDER / "compared.json"
