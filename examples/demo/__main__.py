"""`python -m examples.demo`, in the root of a checkout."""

from __future__ import annotations

import sys

from reasoning_gym_environment.errors import EnvironmentSetupError

from .main import main

try:
    sys.exit(main(sys.argv[1:]))
except (EnvironmentSetupError, OSError) as error:
    print(f"demo: {error}", file=sys.stderr)
    sys.exit(2)
