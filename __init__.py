"""Lets the whole repository stand in for its package: `environments.reasoning_gym_environment` in a tree of Atropos.

The package is the folder of the same name beside this file, and this module becomes that package. The folder of the
repository stays on its path because pytest imports the tests through this module in a clone of the package's name.
"""

from pathlib import Path

_repository = Path(__file__).resolve().parent
_package = _repository / "reasoning_gym_environment"

__path__ = [str(_package), str(_repository)]
__file__ = str(_package / "__init__.py")

exec(compile(Path(__file__).read_text(encoding="utf-8"), __file__, "exec"))
