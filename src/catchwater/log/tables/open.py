"""Where tables lie, and their catalog: in the log's own database, or where the settings say.

A broker alone has a SQLite file beside its own catalog, which only one process at a time may write
to without waiting; brokers that share a PostgreSQL database have the tables' catalog in it, too.
Any other catalog that pyiceberg knows (REST, Glue, ...) is named by its properties.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from catchwater.broker_config import BrokerConfig
from catchwater.config import CatchwaterError
from catchwater.objects.local import make_folders
from catchwater.objects.open import S3_OPTIONS

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

NAME = "catchwater"
"""Of the catalog, in a database that several share."""


class TableUnavailable(CatchwaterError):
    """The table's catalog or its files are out of reach; the log keeps what is not in it yet."""


class TableRefused(CatchwaterError):
    """The table cannot take the topic's records as it is; the log keeps them."""


class TableUnfit(CatchwaterError):
    """The table's rows are not the topic's records as they were, so they stand in for none."""


class ValueRefused(CatchwaterError):
    """A value that is not as its topic declares, where the table is to wait for it."""


def properties_of(config: BrokerConfig) -> dict[str, str] | None:
    """The catalog's properties, as pyiceberg takes them; None: tables may not lie anywhere.

    Tables are files that others read. A log that encrypts its objects has none unless it was said
    where they lie.
    """
    given = dict(config.catchwater_tables_catalog)
    warehouse = config.catchwater_tables_warehouse
    if config.catchwater_encryption_keys and not (given or warehouse):
        return None
    if not given:
        given = {"type": "sql", "uri": _own_database(config)}
        if not warehouse:
            warehouse = _beside_objects(config)
            given |= _server_of(config.catchwater_objects)
    return {**({"warehouse": warehouse} if warehouse else {}), **given}


def open_catalog(properties: Mapping[str, str]) -> "Catalog":
    """The catalog of these properties. Raises `TableUnavailable`."""
    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import NotInstalledError, RESTError
    from sqlalchemy.exc import SQLAlchemyError

    from catchwater.objects.table_files import SYNCED

    uri = properties.get("uri", "")
    try:
        if uri.startswith("sqlite:///"):
            make_folders(Path(uri.removeprefix("sqlite:///")).parent)
        return load_catalog(NAME, **{**SYNCED, **properties})
    except (ValueError, NotInstalledError, RESTError, SQLAlchemyError, OSError) as error:
        raise TableUnavailable(
            f"The tables' catalog cannot be opened: {error}.",
            hint="The settings catchwater.tables.catalog.* are the properties of a pyiceberg "
            "catalog.",
        ) from error


def _own_database(config: BrokerConfig) -> str:
    if config.is_shared:
        return f"postgresql+psycopg://{config.catchwater_catalog.partition('://')[2]}"
    return f"sqlite:///{config.log_dirs.absolute()}/tables.db"


def _server_of(objects: str) -> dict[str, str]:
    """What the URL of a store says of its server, as pyiceberg takes it."""
    said = dict(parse_qsl(urlsplit(objects).query))
    return {f"s3.{name}": said[name] for name in S3_OPTIONS if name in said}


def _beside_objects(config: BrokerConfig) -> str:
    """The folder `tables` where the objects lie."""
    place = urlsplit(config.catchwater_objects)
    if not place.scheme:
        return (config.log_dirs.absolute() / "tables").as_uri()
    if place.scheme == "file":
        return (Path(unquote(place.path)) / "tables").as_uri()
    return f"{place.scheme}://{place.netloc}{place.path.rstrip('/')}/tables"
