"""Environments as users of the original write them: each overrides what the original calls."""

from __future__ import annotations

from typing import Any

import reasoning_gym

from reasoning_gym_environment import ReasoningGymEnv, ReasoningGymEnvConfig

BONUS = 0.25


class ShapedRewards(ReasoningGymEnv):
    """Adds to the rewards of the original."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.scored: list[list[dict[str, Any]]] = []

    async def score(self, rollout_group_data: list[dict[str, Any]]) -> Any:
        self.scored.append(rollout_group_data)
        group = await super().score(rollout_group_data)
        if group is not None:
            group["scores"] = [score + BONUS for score in group["scores"]]
        return group


class OwnScore(ReasoningGymEnv):
    """Scores by rank alone, without the original's method."""

    async def score(self, rollout_group_data: list[dict[str, Any]]) -> Any:
        group: dict[str, list[Any]] = {"tokens": [], "masks": [], "scores": [], "overrides": []}
        group["inference_logprobs"] = []
        for rollout in rollout_group_data:
            group["tokens"].append(rollout["tokens"])
            group["masks"].append(rollout["masks"])
            group["inference_logprobs"].append(rollout["logprobs"])
            group["scores"].append((len(group["scores"]) + 1) / 100)
            group["overrides"].append({})
        return group


class ShortensSequences(OwnScore):
    """Sends other tokens than the server has sampled."""

    async def score(self, rollout_group_data: list[dict[str, Any]]) -> Any:
        group = await super().score(rollout_group_data)
        for name in ("tokens", "masks", "inference_logprobs"):
            group[name] = [values[:-1] for values in group[name]]
        return group


class BoxedAnswers(ReasoningGymEnv):
    """Reads the answer from another form."""

    async def score(self, rollout_group_data: list[dict[str, Any]]) -> Any:
        for rollout in rollout_group_data:
            *prompt, reply = rollout["messages"]
            text = reply["content"].replace("[[", "<answer>").replace("]]", "</answer>")
            rollout["messages"] = [*prompt, {"role": "assistant", "content": text}]
        return await super().score(rollout_group_data)


class ScoresNothing(ReasoningGymEnv):
    async def score(self, rollout_group_data: list[dict[str, Any]]) -> Any:
        return None


class SendsEverySecond(ReasoningGymEnv):
    """Decides about each group where Atropos sends or writes it."""

    seen = 0

    async def handle_send_to_api(self, scored_data: Any, item: Any = None, *arguments: Any, **options: Any) -> None:
        self.seen += 1
        if self.seen % 2 == 0:
            scored_data["scores"] = [score * 2 for score in scored_data["scores"]]
            await super().handle_send_to_api(scored_data, item, *arguments, **options)


class OwnPrompt(ReasoningGymEnv):
    """Gives the model another system message."""

    async def get_next_item(self) -> Any:
        messages, entry, dataset = await super().get_next_item()  # type: ignore[misc]
        return (frozenset({"role": "system", "content": "Be brief."}.items()), messages[1]), entry, dataset


class OwnEntry(ReasoningGymEnv):
    """Asks another question than the item's, with another right answer."""

    async def get_next_item(self) -> Any:
        messages, entry, dataset = await super().get_next_item()  # type: ignore[misc]
        changed = {**entry, "question": "How many days has a week?", "answer": "7"}
        user = frozenset({"role": "user", "content": changed["question"]}.items())
        return (messages[0], user), changed, dataset


class OwnItems(ReasoningGymEnv):
    """Makes its items as the original does, and ends after the third."""

    async def get_next_item(self) -> Any:
        if self.iter == 3:
            return None
        task = self.rng.choice(["chain_sum", "gcd"])
        dataset: Any = reasoning_gym.create_dataset(task, size=1, seed=self.config.seed + self.iter)
        entry = dataset[0]
        self.iter += 1
        self.logger.info("Item %d is of %s.", self.iter, task)
        prompt = [{"role": "system", "content": "Think."}, {"role": "user", "content": entry["question"]}]
        return tuple(frozenset(message.items()) for message in prompt), entry, dataset


class OwnEvaluation(ReasoningGymEnv):
    async def evaluate(self, *args: Any, **kwargs: Any) -> Any:
        scores = [await self.rollout_and_score_eval(item) for item in self.test_items_with_scorers]
        known = [score for score in scores if score is not None]
        self.eval_metrics.append(("eval/mine", sum(known) / len(known)))


class OwnQuestionScore(ReasoningGymEnv):
    """Changes the score of a question, or makes it without a request."""

    asks_the_model = True

    async def rollout_and_score_eval(self, test_item: Any) -> float | None:
        score = await super().rollout_and_score_eval(test_item) if self.asks_the_model else 1.0
        return None if score is None else score / 2


class FewerQuestions(ReasoningGymEnv):
    async def setup(self) -> None:
        await super().setup()
        del self.test_items_with_scorers[1:]


class OwnQuestions(ReasoningGymEnv):
    async def setup(self) -> None:
        await super().setup()
        dataset: Any = reasoning_gym.create_dataset("lcm", size=3, seed=5)
        self.test_items_with_scorers = [(entry, dataset) for entry in dataset]


class RemembersMore(ReasoningGymEnv):
    """Saves something of its own in checkpoints."""

    best = 0.0

    def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> Any:
        data = {} if data is None else data
        data["best"] = self.best
        return super().save_checkpoint(step, data)


class SavesInItsOwnTime(RemembersMore):
    async def save_checkpoint(self, step: int, data: dict[str, Any] | None = None) -> Any:
        await super().save_checkpoint(step, data)


class OwnConfig(ReasoningGymEnvConfig):
    most_words: int = 10

    def validate_config(self) -> None:
        super().validate_config()
        if self.most_words < 1:
            raise ValueError(f"most_words must be positive, got {self.most_words}")


class WithOwnConfig(ReasoningGymEnv):
    @classmethod
    def config_init(cls) -> Any:
        config, servers = super().config_init()
        return OwnConfig(**config.model_dump()), servers


class OverridesWhatIsNotHere(ReasoningGymEnv):
    def _extract_final_answer(self, text: str) -> str:
        return text

    def _get_task_names(self) -> list[str]:
        return ["gcd"]
