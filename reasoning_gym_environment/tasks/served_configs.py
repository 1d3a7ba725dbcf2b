"""Which configs a client of a server may name: those of the served levels, and the default configs.

Any other config makes the generators and verifiers of reasoning-gym do what no one has tried: fill the memory, run
for hours, read files. All integrations that serve clients decide with `ServedConfigs`.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from ..errors import EnvironmentSetupError
from ..records import to_json
from .catalog import Catalog, config_from_json, config_of
from .difficulty_ladder import build_ladder

FILE_FIELDS = ("data_file",)
"""Fields of configs that name files. No client may set them to another value than the default."""

Config = Mapping[str, Any]


class ServedConfigs:
    """The configs that a process serves for each task of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        # Many groups of a request have the same config.
        self._check = functools.lru_cache(maxsize=1024)(self._check_text)

    def check(self, task: str, given: Config, *, allows_any: bool = False) -> None:
        """Raise EnvironmentSetupError unless `given`, which may be JSON and may lack fields, is a served config.

        With `allows_any`, a config that is not served is accepted, unless it names a file. Raises UnknownNameError for
        an unknown task or field.
        """
        self._check(task, json.dumps(to_json(dict(given)), sort_keys=True), allows_any)

    def _check_text(self, task: str, given: str, allows_any: bool) -> None:
        wanted = to_json(config_of(task, config_from_json(task, json.loads(given))))
        served = (config_of(task, self._catalog[task].overrides), config_of(task), *self._levels(task))
        if wanted in map(to_json, served):
            return
        for field in FILE_FIELDS:
            # At any depth: the parts of `composite` have configs of their own.
            if f'"{field}":' in given:
                raise EnvironmentSetupError(
                    f"config: expected the default {field} of {task}. A client may name no file."
                )
        if not allows_any:
            raise EnvironmentSetupError(
                f"config: expected the default config of {task}, or the config of a level that this server serves; got "
                f"{given:.300}. Start the server with --allow-configs, or with the --task-overrides of the export."
            )

    @functools.cache  # noqa: B019
    def _levels(self, task: str) -> tuple[Config, ...]:
        ladder = build_ladder(task, overrides=self._catalog[task].overrides)
        return tuple(level.config for level in ladder.levels)
