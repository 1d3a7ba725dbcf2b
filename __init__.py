"""Makes the whole repository importable as a package: `environments.reasoning_gym_environment` in a tree of Atropos.

The package itself is the folder of the same name beside this file. It takes the place of this module.
"""

import importlib.util
import sys
from pathlib import Path

folder = Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location(__name__, folder / "reasoning_gym_environment" / "__init__.py")
package = importlib.util.module_from_spec(spec)
sys.modules[__name__] = package
spec.loader.exec_module(package)
# pytest imports the tests as a part of this package if the folder of the repository has the name of the package.
sys.modules[__name__].__path__.append(str(folder))
