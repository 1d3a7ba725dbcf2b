"""verl's dataset, with rows of a store of levels. verl loads it through `data.custom_cls` (docs/trainers.md)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from verl.utils.dataset.rl_dataset import RLHFDataset

from reasoning_gym_environment.api import PromptLimit, Rows
from reasoning_gym_environment.integrations.item_formats import verl_row

READ_AT_ONCE = 32


class CurriculumDataset(RLHFDataset):
    """A dataset whose only file is a store of levels (`.sqlite`), or, like any RLHFDataset, files of rows."""

    def _download(self, use_origin_parquet: bool = False) -> None:
        if not self._is_store:
            super()._download(use_origin_parquet)

    def _read_files_and_tokenize(self) -> None:
        if not self._is_store:
            super()._read_files_and_tokenize()
            return
        [path] = self.data_files
        limit = None
        if self.filter_overlong_prompts:
            limit = PromptLimit(self.tokenizer, self.max_prompt_length, dict(self.apply_chat_template_kwargs))
        self.dataframe = _VerlRows(path, limit)

    def __getitems__(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        """The rows of a batch, whose items the workers make in parallel."""
        with ThreadPoolExecutor(READ_AT_ONCE) as threads:
            return list(threads.map(self.__getitem__, numbers))

    @property
    def _is_store(self) -> bool:
        return len(self.data_files) == 1 and str(self.data_files[0]).endswith(".sqlite")


class _VerlRows(Rows):
    def __getitem__(self, number: Any) -> Any:
        return verl_row(super().__getitem__(number))
