"""With what a checkpoint was made: a restore would have to run with the same, or newer."""

import platform
from importlib.metadata import PackageNotFoundError, version


def versions() -> dict[str, str]:
    """Of this product, of Python, and of Spark where it is installed."""
    found = {"catchwater": version("catchwater"), "python": platform.python_version()}
    try:
        return {**found, "pyspark": version("pyspark")}
    except PackageNotFoundError:
        return found
