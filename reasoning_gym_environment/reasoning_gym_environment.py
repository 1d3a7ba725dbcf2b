"""The original's file name: `python reasoning_gym_environment/reasoning_gym_environment.py serve`.

Also importable under the original's module path, with the public names forwarded from the package.
"""

from typing import Any


def __getattr__(name: str) -> Any:
    import importlib

    # After an import, the package is the parent of this module, under any folder name.
    if not __package__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(__package__), name)


if __name__ == "__main__":
    import sys
    from pathlib import Path

    # Run as a script, this file would shadow the package of the same name; its grandparent folder holds the package.
    # Everything is imported here so that a worker process that re-imports the main module loads nothing.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)
    from reasoning_gym_environment.cli import main

    main()
