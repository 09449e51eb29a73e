"""Puts a rebuilt catalog into a data directory; the old one is moved aside, never deleted.

The new catalog is first written completely beside the old one. Then its checksums are moved into
place, and from then on a broker refuses to start until the new database is in place, too.
"""

import os
import shutil
from contextlib import closing
from pathlib import Path

from catchwater.catalog.sqlite import SqliteCatalog
from catchwater.catalog.sums import sums_path
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.log.directory import new_cluster_id
from catchwater.log.repair.rebuild import RebuiltCatalog
from catchwater.objects.local import sync_folder

CATALOG = "catalog.db"
_NEW = ".rebuilt"


class CatalogThere(CatchwaterError):
    """There is a catalog where the rebuilt one would be written."""

    exit_code = 5


def has_catalog(data_dir: Path) -> bool:
    """Whether there is a catalog that would have to be moved aside."""
    return any((*data_dir.glob(f"{CATALOG}*"), *data_dir.glob("catalog.sums")))


def replace_catalog(data_dir: Path, rebuilt: RebuiltCatalog, clock: Clock) -> Path | None:
    """Write the catalog into the directory, whose lock the caller holds.

    Returns the folder to which an older catalog was moved.
    """
    # Write the new catalog completely, in a folder of its own.
    new = data_dir / _NEW
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    made = SqliteCatalog(new / CATALOG, new_cluster_id=lambda: new_cluster_id(clock))
    with closing(made):
        rebuilt.write(made)
    # Switch the checksums first: until the database follows, no broker opens a mix of the two.
    aside = data_dir / f"catalog-aside-{clock.now_ms()}" if has_catalog(data_dir) else None
    sums = sums_path(data_dir / CATALOG)
    if aside is not None:
        aside.mkdir()
        if sums.exists():
            shutil.copy2(sums, aside)
    os.rename(sums_path(new / CATALOG), sums)
    sync_folder(data_dir)
    if aside is not None:
        for file in data_dir.glob(f"{CATALOG}*"):
            os.rename(file, aside / file.name)
        sync_folder(aside)
    os.rename(new / CATALOG, data_dir / CATALOG)
    sync_folder(data_dir)
    shutil.rmtree(new)
    return aside
