"""The answers of an evaluation so far, on disk: one that is killed is resumed where it stopped.

    completion scored ──> a line of answers.jsonl        all answered ──> samples.jsonl, metrics.json (Atropos')
                               └── the next start: same questions, model and sampling? ──> only the rest is asked

The first line of answers.jsonl says which evaluation it belongs to. The file is removed once samples.jsonl has all of
its lines. An answer that could not be scored is not kept, so that it is asked for again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import EnvironmentSetupError
from ..storage.append_log import AppendLog, BrokenLineError, differences, numbered_lines, read_object

logger = logging.getLogger(__name__)

ANSWERS = "answers.jsonl"
SAMPLES, METRICS = "samples.jsonl", "metrics.json"
SETTINGS = "evaluate_config.yaml"

MUST_BE_EQUAL = (
    *("model_name", "manifest", "temperature", "n", "max_new_tokens"),
    *("verification", "grading", "scoring_timeout_s"),
)
"""What makes answers those of one evaluation: the questions, the model, how it is sampled and how it is graded."""


def grading(verification: str) -> str:
    """The rule behind a value of `verification`; `strict` had another one in answers that do not name theirs."""
    return "by canonical value" if verification == "strict" else "by reasoning-gym"


REMEDY = "Set env.data_dir_to_save_evals to another folder, or the settings to what they were."

Key: TypeAlias = tuple[Any, ...]
"""Which completion of which question a sample is: task, index, seed, digest of the text, attempt."""


def key_of(sample: Mapping[str, Any]) -> Key:
    return tuple(sample.get(name) for name in ("task", "index", "seed", "question_digest", "attempt"))


class Journal:
    """The answers of one evaluation in `folder`; nothing is kept without one. Closed by `with`.

    `identity` has the names of MUST_BE_EQUAL; `settings` is written as evaluate_config.yaml with the first answer.
    `answered` has the scored samples of earlier starts. Raises EnvironmentSetupError if another run writes there, or if
    the folder cannot be read or has answers of another evaluation.
    """

    def __init__(self, folder: str | None, identity: Mapping[str, Any], *, settings: str = "") -> None:
        self.answered: Mapping[Any, dict[str, Any]] = {}
        self._log: AppendLog | None = None
        self._settings = settings
        if folder is None:
            return
        path = Path(folder, ANSWERS)
        identity = {name: identity.get(name) for name in MUST_BE_EQUAL}
        try:
            finished = {key: one for one in _finished(path.parent, identity) if (key := _scored_key(one))}
            self._log = AppendLog(
                path, identity, identity_key="evaluation", has_header=True, key=_scored_key, remedy=REMEDY
            )
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot read the answers in {folder}: {error}.") from error
        self.answered = {**finished, **self._log.done}

    def add(self, sample: dict[str, Any]) -> None:
        """Keep a scored sample (plain data). Raises EnvironmentSetupError if it cannot be written."""
        if self._log is None:
            return
        try:
            if not self._log.size and self._settings:
                self._log.path.with_name(SETTINGS).write_text(self._settings, encoding="utf-8")
            self._log.append(sample)
        except OSError as error:
            raise EnvironmentSetupError(f"Cannot keep answers in {self._log.path}: {error}.") from error

    def finish(self) -> None:
        """All answers are in samples.jsonl: those kept on the way are removed."""
        if self._log is not None:
            self._log.path.unlink(missing_ok=True)
        self._close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._log is not None and self._log.count:
            logger.info("%d answers are kept in %s: the same command resumes there.", self._log.count, self._log.path)
        self._close()

    def _close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None


def _scored_key(sample: Mapping[str, Any]) -> Key | None:
    return None if sample.get("score") is None else key_of(sample)


def _finished(folder: Path, identity: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The samples of an evaluation that has ended. Raises EnvironmentSetupError if it was another one."""
    metrics, samples = folder / METRICS, folder / SAMPLES
    if not metrics.is_file() or not samples.is_file():
        return
    try:
        general = json.loads(metrics.read_text(encoding="utf-8"))["config_general"]
        old = {**general["generation_parameters"], "model_name": general["model_name"]}
    except (ValueError, KeyError, TypeError) as error:
        raise EnvironmentSetupError(f"{metrics} is no result of an evaluation ({error!r}). {REMEDY}") from error
    if changes := differences(old, identity):
        raise EnvironmentSetupError(f"{folder} holds another evaluation: {changes}. {REMEDY}")
    with samples.open("rb") as file:
        for _, line, _ in numbered_lines(file):
            try:
                yield read_object(line)
            except BrokenLineError as error:
                # Atropos writes this file at once, and may be killed while it does; the answer is asked for again.
                logger.warning("%s has a line with %s, which is not used.", samples, error)
