"""The import of reasoning-gym: a source checkout if there is one, else the installed package.

The checkout is the git submodule `reasoning-gym`, inside this package or beside it. A fresh clone leaves that folder
empty, so it counts only if it has `reasoning_gym/__init__.py`. A checkout that cannot be imported is an error. It is
never replaced by the installed package, because two versions of a task give different items. Every process, workers
included, calls `load()` before it uses reasoning-gym. The functions below call it themselves.

reasoning-gym 0.1.25 prints nothing while it is imported or while datasets are built. The generator of `bf` prints dots,
and `codeio` and `rectangle_count` print on rare failures. Code that generates items and needs stdout for something else
therefore needs `stdout_to_stderr` too.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import logging
import re
import sys
import threading
import tomllib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from ..errors import EnvironmentSetupError, LibraryNotFoundError

logger = logging.getLogger(__name__)

PACKAGE_DIR = Path(__file__).resolve().parent.parent
CHECKOUTS = (
    PACKAGE_DIR / "reasoning-gym",
    PACKAGE_DIR.parent / "reasoning-gym",
)
"""The possible folders of a checkout, in order of precedence."""

_MODULE = "reasoning_gym"
_DISTRIBUTION = "reasoning-gym"
_REMEDIES = 'Run `git submodule update --init` for the checkout, or `pip install "reasoning-gym>=0.1.25"`.'
_PLOTTING = (
    "matplotlib",
    "matplotlib.pyplot",
    "matplotlib.animation",
    "matplotlib.collections",
    "mpl_toolkits",
    "mpl_toolkits.mplot3d",
)
MAX_MESSAGE_CHARS = 300
"""The longest message of an exception that `explain` returns in full."""
_lock = threading.Lock()


@dataclass(frozen=True)
class Library:
    """The reasoning-gym in use. `location` is the checkout's root, or the installed package's folder."""

    source: Literal["submodule", "package"]
    location: Path
    version: str

    def describe(self) -> str:
        """A line for the setup log."""
        origin = "submodule" if self.source == "submodule" else "installed package"
        return f"{_DISTRIBUTION} {self.version} from the {origin} ({self.location})"


def load() -> Library:
    """Import reasoning-gym, once per process, and describe it.

    If there is a checkout, it becomes the first folder of `sys.path`. If the process has imported `reasoning_gym` from
    elsewhere before, that module stays in use, and the log warns if there is a checkout. Raises LibraryNotFoundError if
    reasoning-gym is not found or cannot be imported.
    """
    with _lock:
        return _load()


@functools.cache
def _load() -> Library:
    checkout = _find_checkout()
    module = sys.modules.get(_MODULE) or _import(checkout)
    folder = Path(module.__path__[0]).resolve()
    if checkout is not None and folder == (checkout / _MODULE).resolve():
        return Library("submodule", checkout, _version(checkout))
    if checkout is not None:
        logger.warning(
            "reasoning_gym was already imported from %s: the checkout at %s is not used.",
            folder,
            checkout,
        )
    return Library("package", folder, _version(folder.parent))


def _find_checkout() -> Path | None:
    for path in CHECKOUTS:
        if (path / _MODULE / "__init__.py").is_file():
            return path
    return None


def _import(checkout: Path | None) -> ModuleType:
    if checkout is not None:
        sys.path.insert(0, str(checkout))
    try:
        with stdout_to_stderr(), _without_plotting(), warnings.catch_warnings():
            # Libraries of reasoning-gym compare with `is`, which Python reports when it first compiles them.
            warnings.simplefilter("ignore", category=SyntaxWarning)
            return importlib.import_module(_MODULE)
    # A checkout may hold any state of the library's code, so its import may raise anything.
    except Exception as error:
        raise LibraryNotFoundError(_import_failure(checkout, error)) from error


class _Placeholder(ModuleType):
    """Stands for a module that is imported and never used. Every attribute of it is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextlib.contextmanager
def _without_plotting() -> Iterator[None]:
    """Import without matplotlib. cellpylib, used by game_of_life, imports it for plots: 40 MB in each process."""
    absent = {name: _Placeholder(name) for name in _PLOTTING if name not in sys.modules}
    sys.modules.update(absent)
    try:
        yield
    finally:
        # Task modules may plot.
        for name in absent:
            del sys.modules[name]


def _import_failure(checkout: Path | None, error: Exception) -> str:
    if checkout is not None:
        return (
            f"The reasoning-gym checkout at {checkout} cannot be imported: {explain(error)}. Install its "
            f'dependencies (`pip install "{checkout}"`), or empty the folder to use the installed package.'
        )
    if isinstance(error, ModuleNotFoundError) and error.name == _MODULE:
        places = " or ".join(map(str, CHECKOUTS))
        return f"reasoning-gym was not found: no checkout in {places}, and no installed package. {_REMEDIES}"
    return f"The installed reasoning-gym cannot be imported: {explain(error)}. Reinstall it. {_REMEDIES}"


def _version(root: Path) -> str:
    """The version of the reasoning-gym whose package folder lies in `root`.

    `reasoning_gym.__version__` is out of date (0.1.19 in the release 0.1.25). Therefore a source tree's pyproject.toml
    or an installed package's metadata gives the version.
    """
    pyproject = root / "pyproject.toml"
    if pyproject.is_file():
        project = tomllib.loads(pyproject.read_text(encoding="utf-8")).get("project", {})
        if project.get("name", "").replace("_", "-") == _DISTRIBUTION:
            return project.get("version", "unknown version")
    try:
        return importlib.metadata.version(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown version"


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect prints of Python code to stderr, because stdout may carry a report or the protocol of a worker.

    This replaces `sys.stdout` for the whole process. Use it briefly, and in a single thread.
    """
    with contextlib.redirect_stdout(sys.stderr):
        yield


def explain(error: BaseException) -> str:
    """An exception in a single line, without a period: its type, and the start of its message if it has a message."""
    message = " ".join(str(error).split()).rstrip(". ")
    if len(message) > MAX_MESSAGE_CHARS:
        message = f"{message[:MAX_MESSAGE_CHARS]} ..."
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


# --- the functions of reasoning-gym ---


def registry() -> dict[str, tuple[type, type]]:
    """A copy of the registry: name -> (dataset class, config class).

    Raises EnvironmentSetupError if this reasoning-gym has no registry where release 0.1.25 has it.
    """
    try:
        return dict(_factory().DATASETS)
    except (ImportError, AttributeError) as error:
        raise EnvironmentSetupError(
            f"The registry of {load().describe()} cannot be read: {explain(error)}. Install the release 0.1.25."
        ) from error


def create_dataset(task: str, **config: Any) -> Any:
    """Build a dataset. Raises reasoning-gym's exceptions for an unknown task or an invalid config."""
    load()
    return importlib.import_module(_MODULE).create_dataset(task, **config)


def has_curriculum(task: str) -> bool:
    """Whether reasoning-gym can make this task easier and harder."""
    return bool(_factory().has_curriculum(task))


def create_curriculum(task: str) -> Any:
    """A new curriculum of this task. Raises ValueError if it has no curriculum (see `has_curriculum`)."""
    return _factory().create_curriculum(task)


def _factory() -> Any:
    load()
    return importlib.import_module(f"{_MODULE}.factory")


def import_modules(modules: Iterable[str]) -> None:
    """Import the user's modules, which register their datasets with reasoning-gym. Each is imported once.

    A module is a dotted name that Python can import, or a path that ends in `.py`. Raises EnvironmentSetupError with
    the module and the cause.
    """
    load()
    for module in modules:
        try:
            with stdout_to_stderr():
                if module.endswith(".py"):
                    _import_file(module)
                else:
                    importlib.import_module(module)
        # The user's code may raise anything, and a script without a __main__ guard may exit.
        except (Exception, SystemExit) as error:
            raise EnvironmentSetupError(
                f"The task module {module!r} cannot be imported: {explain(error)}. Expected a dotted name "
                "that Python finds (see PYTHONPATH) or the path of a .py file."
            ) from error


def _import_file(path: str) -> None:
    """Import a file. The name of its module is derived from the path and is the same in every process.

    Otherwise its datasets could not be pickled.
    """
    file = Path(path).expanduser().resolve()
    digest = hashlib.blake2b(str(file).encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    name = f"task_module_{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}_{digest}"
    if name in sys.modules:
        return
    main = sys.modules["__main__"]
    program = getattr(main, "__file__", None)
    if program and Path(program).resolve() == file:
        # The program itself registers its datasets before it uses them.
        sys.modules[name] = main
        return
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
