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
import sysconfig
import traceback
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from catchwater.config import CatchwaterError, ConfigError, nearest
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.recovery.ledger import FOLDER, write_whole

_LOADED = "__catchwater_code__"
"""The attribute of a module that says which artefact it was made from."""
_NOT_THE_USERS = (
    "<",
    str(Path(__file__).parents[2]),
    sysconfig.get_path("stdlib"),
    sysconfig.get_path("purelib"),
)
"""How names of files begin that are not the user's."""


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
    module = _imported(module_name, folder)
    target = getattr(module, name, None)
    if target is None:
        raise ConfigError(
            f"The module {module_name!r} ({module.__file__}) has no {name!r}.",
            hint=f"The nearest is {nearest(name, vars(module))}.",
        )
    return spec_of(target)


def _imported(name: str, folder: Path) -> ModuleType:
    """The user's module. Raises `ConfigError` for whatever that raises, with its line."""
    try:
        return importlib.import_module(name)
    except CatchwaterError:  # a declaration says by itself what is wrong
        raise
    except Exception as error:  # a module is the user's, and may raise anything
        absent = isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]
        told = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"The function's module {name!r} cannot be imported: {told}{_line(error)}.",
            hint=f"It is looked for in {folder} and on the Python path." if absent else None,
        ) from error


def _line(error: Exception) -> str:
    """The innermost line of the user's that led to the error, to end a sentence with."""
    if isinstance(error, SyntaxError):
        return ""  # it names its own
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THE_USERS)]
    return f", at {own[-1].filename} line {own[-1].lineno}: {own[-1].line}" if own else ""


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
    return FunctionCode(target.__module__, _name_of(target), str(path), sha256)


def _name_of(target: Any) -> str:
    """What the function's module calls it. Raises `ConfigError` if it has no name there."""
    if "<locals>" not in target.__qualname__:
        return str(target.__qualname__)
    for name, each in vars(sys.modules[target.__module__]).items():
        if each is target:
            return name
    raise ConfigError(
        f"The function {target.__qualname__} has no name in the module that makes it, "
        f"{target.__module__!r}, where workers look for it.",
        hint="Give it one there: name = made(…), and let function = name that module.",
    )
