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
        self._config = functools.lru_cache(maxsize=1024)(self._find)

    def config(self, task: str, given: Config, *, level: int | None = None, allows_any: bool = False) -> Config:
        """The config of a level, or the served config that equals `given`, which may be JSON and may lack fields.

        With `allows_any`, a config that is not served is accepted, unless it names a file. Raises UnknownNameError for
        an unknown task or field, and EnvironmentSetupError for any other config or level.
        """
        if level is None:
            return self._config(task, json.dumps(to_json(dict(given)), sort_keys=True), allows_any)
        levels = self._levels(task)
        if given or not 0 <= level < len(levels):
            raise EnvironmentSetupError(
                f"level: {task} has the levels 0 to {len(levels) - 1}, without a config; got {level}, {given!r:.200}."
            )
        return levels[level]

    def _find(self, task: str, given: str, allows_any: bool) -> Config:
        typed = config_from_json(task, json.loads(given))
        wanted = config_of(task, typed)
        for served in (config_of(task, self._catalog[task].overrides), config_of(task), *self._levels(task)):
            if to_json(served) == to_json(wanted):
                return served
        for field in FILE_FIELDS:
            # At any depth: the parts of `composite` have configs of their own.
            if f'"{field}":' in given:
                raise EnvironmentSetupError(
                    f"config: expected the default {field} of {task}. A client may name no file."
                )
        if allows_any:
            return typed
        raise EnvironmentSetupError(
            f"config: expected the default config of {task}, or the config of a level that this server serves; got "
            f"{given:.300}. Start the server with --allow-configs, or with the --task-overrides of the export."
        )

    @functools.cache  # noqa: B019
    def _levels(self, task: str) -> tuple[Config, ...]:
        ladder = build_ladder(task, overrides=self._catalog[task].overrides)
        return tuple(level.config for level in ladder.levels)
