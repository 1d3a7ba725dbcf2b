"""verl's dataset, with rows of a store of levels (docs/verl.md). verl loads this class through `data.custom_cls`.

    data.train_files=levels.sqlite ── CurriculumRows ──> a row, made when verl's data loader reads it
    data.val_files=test.parquet ── RLHFDataset ──> the rows of the file

verl uses one class for both. The imports of this package are absolute, because verl may load the class from a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from verl.utils.dataset.rl_dataset import RLHFDataset

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.integrations.curriculum_rows import CurriculumRows, PromptLimit
from reasoning_gym_environment.integrations.item_formats import verl_row

__all__ = ["CurriculumDataset"]

STORE_SUFFIX = ".sqlite"

READ_AT_ONCE = 32


class CurriculumDataset(RLHFDataset):
    """A dataset whose file is a store of levels, or, like any RLHFDataset, files of rows.

    Raises EnvironmentSetupError if the store is missing, or if there are other files beside it.
    """

    def _download(self, use_origin_parquet: bool = False) -> None:
        if not self._is_store:
            super()._download(use_origin_parquet)

    def _read_files_and_tokenize(self) -> None:
        if not self._is_store:
            super()._read_files_and_tokenize()
            return
        if len(self.data_files) != 1:
            raise EnvironmentSetupError(
                f"data.train_files: expected the store of levels alone, got {', '.join(self.data_files)}."
            )
        limit = None
        if self.filter_overlong_prompts:
            limit = PromptLimit(self.tokenizer, self.max_prompt_length, dict(self.apply_chat_template_kwargs))
        self.dataframe = _VerlRows(CurriculumRows(self.data_files[0], limit))

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The rows of a batch. For a store, the workers make their items in parallel."""
        if not self._is_store:
            return [self[number] for number in numbers]
        with ThreadPoolExecutor(READ_AT_ONCE) as threads:
            return list(threads.map(self.__getitem__, numbers))

    @property
    def _is_store(self) -> bool:
        return any(str(file).endswith(STORE_SUFFIX) for file in self.data_files)


class _VerlRows:
    """The rows of a store with verl's columns."""

    def __init__(self, rows: CurriculumRows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return verl_row(self._rows[number].exported)
