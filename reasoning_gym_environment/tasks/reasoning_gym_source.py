"""Where reasoning-gym comes from: a source checkout if there is one, else the installed package.

The checkout is the git submodule `reasoning-gym`, inside this package or beside it. A fresh clone leaves
that folder empty; it counts only when `reasoning_gym/__init__.py` is in it. A checkout that exists but
cannot be imported is an error and never replaced by the package: two versions of a task give different
items. Every process (workers too) calls `load()` before it touches reasoning-gym; the functions below
that need it do so themselves.

reasoning-gym 0.1.25 prints nothing while it is imported or while datasets are built. Generating `bf`
items prints dots, and `codeio` and `rectangle_count` print on rare failures, so whoever generates items
and uses stdout for something else needs `stdout_to_stderr` too.
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
import textwrap
import threading
import tomllib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from ..errors import EnvironmentSetupError, LibraryNotFoundError

logger = logging.getLogger(__name__)

PACKAGE_DIR = Path(__file__).resolve().parent.parent
CHECKOUTS = (PACKAGE_DIR / "reasoning-gym", PACKAGE_DIR.parent / "reasoning-gym")
"""Where a checkout may lie, in order of precedence."""

_MODULE = "reasoning_gym"
_DISTRIBUTION = "reasoning-gym"
_REMEDIES = 'Run `git submodule update --init` for the checkout, or `pip install "reasoning-gym>=0.1.25"`.'
_PLOTTING = (
    *("matplotlib", "matplotlib.pyplot", "matplotlib.animation", "matplotlib.collections"),
    *("mpl_toolkits", "mpl_toolkits.mplot3d"),
)
_lock = threading.Lock()


class RegistryError(EnvironmentSetupError):
    """reasoning-gym is there, but its registry of datasets cannot be read."""


@dataclass(frozen=True)
class Library:
    """The reasoning-gym in use. `location` is the checkout's root, or the installed package's folder."""

    source: Literal["submodule", "package"]
    location: Path
    version: str

    def describe(self) -> str:
        """One line for the setup log."""
        origin = "submodule" if self.source == "submodule" else "installed package"
        return f"{_DISTRIBUTION} {self.version} from the {origin} ({self.location})"


def load() -> Library:
    """Import reasoning-gym, once per process, and say which one it is.

    Puts the checkout first on `sys.path` if there is one. If `reasoning_gym` was imported before from
    elsewhere, that one stays in use, with a warning when there is a checkout. Raises
    LibraryNotFoundError when nothing is found, or what is found cannot be imported.
    """
    with _lock:
        return _load()


@functools.cache
def _load() -> Library:
    checkout = _find_checkout()
    module = sys.modules.get(_MODULE) or _import(checkout)
    if module.__file__ is None:
        raise LibraryNotFoundError(
            f"{_MODULE} at {list(module.__path__)} is a folder without an __init__.py. {_REMEDIES}"
        )
    folder = Path(module.__file__).resolve().parent
    if checkout is not None and folder == (checkout / _MODULE).resolve():
        return Library("submodule", checkout, _version(checkout))
    if checkout is not None:
        logger.warning("reasoning_gym was already imported from %s: the checkout at %s is not used.", folder, checkout)
    return Library("package", folder, _version(folder.parent))


def find() -> Library:
    """Which one `load` imports, without importing it where that can be told. Raises LibraryNotFoundError."""
    checkout = _find_checkout()
    is_loaded = _MODULE in sys.modules
    if checkout is not None and not is_loaded:
        return Library("submodule", checkout, _version(checkout))
    spec = None if is_loaded else importlib.util.find_spec(_MODULE)
    if spec is None or spec.origin is None:
        return load()
    folder = Path(spec.origin).resolve().parent
    return Library("package", folder, _version(folder.parent))


def _find_checkout() -> Path | None:
    return next((path for path in CHECKOUTS if (path / _MODULE / "__init__.py").is_file()), None)


def _import(checkout: Path | None) -> ModuleType:
    if checkout is not None:
        sys.path.insert(0, str(checkout))
    try:
        with stdout_to_stderr(), _without_plotting(), warnings.catch_warnings():
            # Libraries of reasoning-gym compare with `is`; Python says so when it first compiles them.
            warnings.simplefilter("ignore", category=SyntaxWarning)
            return importlib.import_module(_MODULE)
    # A checkout may hold any state of the library's code, so its import may raise anything.
    except Exception as error:
        if checkout is not None:
            sys.path.remove(str(checkout))
        for name in [name for name in sys.modules if name.startswith(f"{_MODULE}.")]:
            del sys.modules[name]
        raise LibraryNotFoundError(_import_failure(checkout, error)) from error


class _NeverUsed(ModuleType):
    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


@contextlib.contextmanager
def _without_plotting() -> Iterator[None]:
    """cellpylib, which makes game_of_life's boards, imports matplotlib to draw them: 40 MB in each process."""
    absent = {name: _NeverUsed(name) for name in _PLOTTING if name not in sys.modules}
    sys.modules.update(absent)
    try:
        yield
    finally:
        # For task modules that do plot.
        for name in absent:
            del sys.modules[name]


def _import_failure(checkout: Path | None, error: Exception) -> str:
    if checkout is not None:
        return (
            f"The reasoning-gym checkout at {checkout} cannot be imported: {explain(error)}. Install what it "
            f'needs (`pip install "{checkout}"`), or empty the folder to use the installed package.'
        )
    if isinstance(error, ModuleNotFoundError) and error.name == _MODULE:
        places = " or ".join(map(str, CHECKOUTS))
        return f"reasoning-gym was not found: no checkout in {places}, and no installed package. {_REMEDIES}"
    return f"The installed reasoning-gym cannot be imported: {explain(error)}. Reinstall it. {_REMEDIES}"


def _version(root: Path) -> str:
    """The version of the reasoning-gym whose package folder lies in `root`.

    `reasoning_gym.__version__` is not kept up to date (0.1.25 says 0.1.19), so a source tree is asked
    through its pyproject.toml and an installed package through its metadata.
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
    """Send what Python code prints to stderr meanwhile; ours may carry a report or a worker's protocol.

    Swaps `sys.stdout` for the whole process: use it from one thread at a time, for a short while.
    """
    with contextlib.redirect_stdout(sys.stderr):
        yield


def explain(error: BaseException) -> str:
    """An exception in one line, without a period: its type, and the start of its message if it has one."""
    message = textwrap.shorten(str(error).rstrip(". \n"), width=300, placeholder=" ...")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


# --- what the other modules use of it ---


def registry() -> dict[str, tuple[type, type]]:
    """Every registered dataset: name -> (dataset class, config class). A copy.

    Raises RegistryError if this release of reasoning-gym keeps it elsewhere or has none.
    """
    datasets = getattr(_factory(), "DATASETS", None)
    if not isinstance(datasets, Mapping) or not datasets:
        raise RegistryError(
            f"Expected reasoning_gym.factory.DATASETS to be a filled mapping, got {type(datasets).__name__}"
            f" in {load().describe()}."
        )
    return dict(datasets)


def create_dataset(task: str, **config: Any) -> Any:
    """Build a dataset; raises what reasoning-gym raises for an unknown task or an invalid config."""
    load()
    return importlib.import_module(_MODULE).create_dataset(task, **config)


def has_curriculum(task: str) -> bool:
    """Whether reasoning-gym can make this task easier and harder."""
    try:
        return bool(_factory().has_curriculum(task))
    except (RegistryError, AttributeError) as error:
        _warn_no_curricula(explain(error))
        return False


def create_curriculum(task: str) -> Any:
    """A fresh curriculum of this task; raises ValueError if it has none (see `has_curriculum`)."""
    return _factory().create_curriculum(task)


def _factory() -> Any:
    load()
    try:
        return importlib.import_module(f"{_MODULE}.factory")
    except ImportError as error:
        raise RegistryError(
            f"reasoning_gym.factory cannot be imported: {explain(error)}, in {load().describe()}."
        ) from error


@functools.cache
def _warn_no_curricula(cause: str) -> None:
    logger.warning("No task has a curriculum, because reasoning-gym's cannot be read: %s", cause)


def import_modules(modules: Iterable[str]) -> None:
    """Import the user's modules, each once, which register their datasets with reasoning-gym.

    A module is a dotted name that Python can import, or a path ending in `.py`. A file is imported under
    a name made from its path, the same in every process, so that its datasets can be pickled. Raises
    EnvironmentSetupError naming the module and the cause.
    """
    load()
    for module in modules:
        try:
            with stdout_to_stderr():
                _import_file(module) if module.endswith(".py") else importlib.import_module(module)
        # The user's code may raise anything, and a script without a __main__ guard may exit.
        except (Exception, SystemExit) as error:
            raise EnvironmentSetupError(
                f"The task module {module!r} cannot be imported: {explain(error)}. Expected a dotted name "
                "that Python finds (see PYTHONPATH) or the path of a .py file."
            ) from error


def _import_file(path: str) -> None:
    file = Path(path).expanduser().resolve()
    digest = hashlib.blake2b(str(file).encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    name = f"task_module_{re.sub(r'[^0-9A-Za-z_]', '_', file.stem)}_{digest}"
    if name in sys.modules:
        return
    main = sys.modules["__main__"]
    if (running := getattr(main, "__file__", None)) and Path(running).resolve() == file:
        # It is the program itself, which has registered its datasets before it came to use them.
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
