"""A function's code as an artefact of its own, so that no worker ever runs another version.

The module that declares the function is copied into the checkpoint under the SHA-256 of its
source. Workers load that file and nothing else, and refuse one whose hash is not the one they
were told. Pickling a class by reference would let a worker that imported it earlier, or that
finds another copy on its path, run old code without a word.

Modules that the function's module imports are found on the path as usual.
"""

import hashlib
import importlib
import sys
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import msgspec

from catchwater.config import CatchwaterError, ConfigError
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.recovery.ledger import FOLDER, write_whole

_LOADED = "__catchwater_code__"
"""The attribute of a module that says which artefact it was made from."""


class CodeChanged(CatchwaterError):
    """An artefact's bytes are not those it was published with."""


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """Where a function's code lies and what it must be; pickles, and is short."""

    module: str
    name: str
    path: str
    sha256: str

    def load(self) -> FunctionSpec:
        """The function's declaration, from the artefact. Raises `CodeChanged`."""
        module = sys.modules.get(self.module)
        if module is None or getattr(module, _LOADED, None) != self.sha256:
            module = self._execute()
        return spec_of(getattr(module, self.name))

    def _execute(self) -> Any:
        path = Path(self.path)
        if hashlib.sha256(path.read_bytes()).hexdigest() != self.sha256:
            raise CodeChanged(
                f"The code of {self.module}:{self.name} at {path} is not what was published.",
                hint="Start the pipeline again.",
            )
        found = spec_from_file_location(self.module, path)
        assert found is not None and found.loader is not None, "a .py file has a loader"
        module = module_from_spec(found)
        # Annotations are resolved through sys.modules, by the module's own name.
        sys.modules[self.module] = module
        found.loader.exec_module(module)
        setattr(module, _LOADED, self.sha256)
        return module


def find_function(named: str, folder: Path) -> FunctionSpec:
    """The function `module:Class`, looked for in `folder` first. Raises `ConfigError`."""
    module_name, _, name = named.partition(":")
    if not module_name or not name.isidentifier():
        raise ConfigError(f"function = {named!r} is not of the form module:Class.")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"The function's module {module_name!r} cannot be imported: {error}.",
            hint=f"It is looked for in {folder} and on the Python path.",
        ) from error
    target = getattr(module, name, None)
    if target is None:
        raise ConfigError(f"The module {module_name!r} ({module.__file__}) has no {name!r}.")
    return spec_of(target)


def publish(spec: FunctionSpec, checkpoint: Path) -> FunctionCode:
    """Copy the module that declares the function into the checkpoint."""
    target = spec.target
    file = sys.modules[target.__module__].__file__
    assert file is not None, "a function is declared in a file"
    source = Path(file).read_bytes()
    sha256 = hashlib.sha256(source).hexdigest()
    path = checkpoint / FOLDER / "code" / f"{sha256}.py"
    if not path.exists():
        write_whole(path, source)
    return FunctionCode(target.__module__, target.__qualname__, str(path), sha256)


def state_schema(spec: FunctionSpec) -> str:
    """The shape of the function's state, as text that changes when the shape does."""
    if hasattr(spec.state_type, "model_json_schema"):
        schema = spec.state_type.model_json_schema()
    else:
        schema = msgspec.json.schema(spec.state_type)
    return msgspec.json.encode(schema, order="deterministic").decode()
