"""Measure one task: make its items twice, grade every probe in the sandbox, judge what was paid."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ..errors import GenerationError
from ..utils.seeding import derive_seed
from ..verification.positive_controls import positive_control
from ..workers import AnswerGrader, Status, Verdict
from . import findings
from .findings import Findings, Paid
from .probes import Probe, build_probes

logger = logging.getLogger(__name__)


class ItemGenerator(Protocol):
    """Generates one item; see workers.generation.ProcessGenerator."""

    async def generate(self, task: str, seed: int, config: Mapping[str, Any]) -> dict[str, Any]: ...


class Auditor:
    """Audits tasks at reasoning-gym's default configs. `grader` must apply the strict standards.

    `items` of each task are probed; `draws` are made for counting distinct questions and making them again.
    """

    def __init__(
        self,
        generator: ItemGenerator,
        grader: AnswerGrader,
        *,
        items: int,
        draws: int,
        seed: int,
        runs_text: Mapping[str, str],
    ) -> None:
        self._generator = generator
        self._grader = grader
        self._items = items
        self._draws = max(draws, items)
        self._seed = seed
        self._runs_text = runs_text

    async def audit(self, task: str, category: str) -> Findings:
        """What was found of one task. An item that cannot be made is counted, and logged with its reason."""
        made = [entry for entry in await self._draw(task) if entry is not None]
        again = [entry for entry in await self._draw(task) if entry is not None]
        entries = made[: self._items]
        oracles = [positive_control(task, entry) for entry in entries]
        paid, verdicts = await self._grade(task, entries, build_probes(task, entries, oracles))
        best_paid, best_pay = findings.best_paid_worthless(paid, native=False)
        return Findings(
            task=task,
            category=category,
            verdict=findings.judge(paid, native=False),
            native_verdict=findings.judge(paid, native=True),
            items=len(entries),
            unmade=self._draws - len(made),
            draws=len(made),
            distinct_questions=len({str(entry["question"]) for entry in made}),
            # Not ==, of which an entry with arrays makes an array.
            regenerates=repr(made) == repr(again),
            pays=_by_name(findings.mean_by_kind(paid, native=False)),
            native_pays=_by_name(findings.mean_by_kind(paid, native=True)),
            others_in_full=findings.full_credit_to_others(paid, native=False),
            best_paid=best_paid,
            best_pay=best_pay,
            runs_text=self._runs_text.get(task, ""),
            answers=len(verdicts),
            raised=sum(verdict.status is Status.VERIFIER_ERROR for verdict in verdicts),
            unscored=sum(verdict.status not in (Status.SCORED, Status.VERIFIER_ERROR) for verdict in verdicts),
        )

    async def _draw(self, task: str) -> list[dict[str, Any] | None]:
        async def one(index: int) -> dict[str, Any] | None:
            try:
                return await self._generator.generate(task, derive_seed(self._seed, "audit", task, index), {})
            except GenerationError as error:
                logger.warning("An item is left out of the audit: %s", error)
                return None

        return list(await asyncio.gather(*map(one, range(self._draws))))

    async def _grade(
        self, task: str, entries: Sequence[dict[str, Any]], probes: Sequence[Probe]
    ) -> tuple[list[Paid], list[Verdict]]:
        async def grade_item(item: int) -> list[tuple[Probe, Verdict]]:
            mine = [probe for probe in probes if probe.item == item]
            verdicts = await self._grader.grade(task, {}, entries[item], [probe.answer for probe in mine])
            return list(zip(mine, verdicts, strict=True))

        graded = [pair for pairs in await asyncio.gather(*map(grade_item, range(len(entries)))) for pair in pairs]
        # What has no score says nothing about what the verifier pays.
        paid = [
            Paid(probe.kind, probe.label, verdict.value, verdict.native)
            for probe, verdict in graded
            if verdict.status in (Status.SCORED, Status.VERIFIER_ERROR)
        ]
        return paid, [verdict for _, verdict in graded]


def _by_name(means: Mapping[Any, float]) -> dict[str, float]:
    return {kind.value: round(mean, 4) for kind, mean in means.items()}
