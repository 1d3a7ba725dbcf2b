"""What an evaluation has been answered so far, on disk: so that one that ends early goes on where it stopped.

    completion scored ──> a line of answers.jsonl        all answered ──> samples.jsonl, metrics.json (Atropos')
                               └── the next start: same questions, model and sampling? ──> only the rest is asked

The first line of answers.jsonl says of which evaluation its answers are. The file goes when samples.jsonl, which has
all of them, is written. An answer that is unscored is not kept, so that it is asked for again. Nothing here is
trusted to be whole: the process may have been killed while it wrote.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from ..errors import EnvironmentSetupError
from ..utils.terminal import claim

logger = logging.getLogger(__name__)

ANSWERS = "answers.jsonl"
SAMPLES, METRICS = "samples.jsonl", "metrics.json"
SETTINGS = "evaluate_config.yaml"

MUST_BE_EQUAL = (
    "model_name",
    "manifest",
    "temperature",
    "n",
    "max_new_tokens",
    "verification",
    "answer_normalization",
    "scoring_timeout_s",
)
"""What makes answers those of one evaluation: the questions, the model, how it is sampled and how it is graded."""

Key: TypeAlias = tuple[Any, ...]
"""Which completion of which question a sample is: task, index, seed, digest of the text, attempt."""


def key_of(sample: Mapping[str, Any]) -> Key:
    return tuple(sample.get(name) for name in ("task", "index", "seed", "question_digest", "attempt"))


class Journal:
    """The answers of one evaluation in `folder`; without one, nothing is kept. Closed by `with`.

    `identity` has the names of MUST_BE_EQUAL; `settings` is written as evaluate_config.yaml with the first answer.
    The folder is held from when it is there. Raises EnvironmentSetupError if another run holds it, if it has answers
    of another evaluation, or cannot be read.
    """

    def __init__(self, folder: str | None, identity: Mapping[str, Any], *, settings: str = "") -> None:
        self.answered: dict[Key, dict[str, Any]] = {}
        """The scored samples of before, and those added."""
        self._folder = None if folder is None else Path(folder)
        self._identity = {name: identity.get(name) for name in MUST_BE_EQUAL}
        self._settings = settings
        self._file: TextIO | None = None
        self._hold: int | None = None
        if self._folder is None:
            return
        try:
            if self._folder.is_dir():
                self._claim(self._folder)
            self._take_over_finished(self._folder)
            self._take_over_unfinished(self._folder / ANSWERS)
        except BaseException as error:
            self._let_go()
            if isinstance(error, OSError):
                raise EnvironmentSetupError(f"Cannot read the answers in {folder}: {error}.") from error
            raise

    def add(self, sample: Mapping[str, Any]) -> None:
        """Keep a scored sample (plain data). Raises EnvironmentSetupError if it cannot be written."""
        if self._folder is None:
            return
        try:
            if self._file is None:
                self._file = self._begun(self._folder)
            # One call: a line is in the system's hands, whatever becomes of this process, or it is not there.
            self._file.write(json.dumps(sample) + "\n")
            self._file.flush()
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot keep answers in {self._folder}: {error}.") from error
        self.answered[key_of(sample)] = dict(sample)

    def finish(self) -> None:
        """All answers are in samples.jsonl: what was kept on the way goes."""
        self._close()
        if self._folder is not None:
            Path(self._folder, ANSWERS).unlink(missing_ok=True)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()
        self._let_go()
        if self._folder is not None and (path := self._folder / ANSWERS).exists():
            logger.info("%d answers are kept in %s: the same command goes on from there.", len(self.answered), path)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _claim(self, folder: Path) -> None:
        if self._hold is None:
            self._hold = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            claim(self._hold, folder)

    def _let_go(self) -> None:
        if self._hold is not None:
            os.close(self._hold)
            self._hold = None

    def _begun(self, folder: Path) -> TextIO:
        path = folder / ANSWERS
        folder.mkdir(parents=True, exist_ok=True)
        self._claim(folder)
        if self._settings:
            Path(folder, SETTINGS).write_text(self._settings, encoding="utf-8")
        if not path.exists():
            path.write_text(json.dumps({"evaluation": self._identity}) + "\n", encoding="utf-8")
        return path.open("a", encoding="utf-8")

    def _take_over_finished(self, folder: Path) -> None:
        metrics, samples = folder / METRICS, folder / SAMPLES
        if not metrics.is_file() or not samples.is_file():
            return
        try:
            general = json.loads(metrics.read_text(encoding="utf-8"))["config_general"]
            identity = {**general["generation_parameters"], "model_name": general["model_name"]}
        except (ValueError, KeyError, TypeError) as error:
            raise EnvironmentSetupError(
                f"{metrics} is no result of an evaluation ({error!r}): choose another env.data_dir_to_save_evals."
            ) from error
        self._take(identity, samples.read_text(encoding="utf-8").split("\n"))

    def _take_over_unfinished(self, path: Path) -> None:
        if not path.is_file():
            return
        data = path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            # Killed while it wrote: what is written next must begin on a line of its own.
            os.truncate(path, whole)
        if not whole:
            path.unlink()
            return
        first, *lines = data[:whole].decode("utf-8", "replace").split("\n")
        identity = (_parsed(first) or {}).get("evaluation")
        if not isinstance(identity, dict):
            raise EnvironmentSetupError(f"{path} does not say of which evaluation it is: move it away.")
        self._take(identity, lines)

    def _take(self, identity: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Take over scored samples of an equal evaluation."""
        different = [name for name in MUST_BE_EQUAL if identity.get(name) != self._identity[name]]
        if different:
            changes = ", ".join(
                f"{name} {identity.get(name, 'unknown')} (now {self._identity[name]})" for name in different
            )
            raise EnvironmentSetupError(
                f"{self._folder} holds answers of another evaluation: {changes}. Set env.data_dir_to_save_evals to "
                "another folder, or the settings to what they were to go on."
            )
        for line in lines:
            sample = _parsed(line)
            if sample is not None and sample.get("score") is not None:
                self.answered[key_of(sample)] = sample


def _parsed(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
