"""Compare this environment with the original: python benchmarks/compare_with_original.py ATROPOS [--groups 200]

ATROPOS is a checkout of https://github.com/NousResearch/atropos. Both environments get the same items, and sample the
same completions of many kinds from a mock server. Each runs in a separate process, because their modules have the same
name. The JSON has everything that differs, and docs/differences_from_the_original.md says what is meant to differ:

    completions    in groups that both send: scores, tokens, masks, log probabilities and overrides that differ, by kind
                   of completion, with an example
    missing        kinds of completions that an environment leaves out of a group that both send
    sent_by_one    groups that only one environment sends
    dumps          names of files, and groups that only one environment dumps, or with other scores
    metric_names   names that only one environment logs
    metric_values  values that differ, except for times

With `--verification native`, which is the default, scores must differ only for the kinds of completions that the page
lists. With `strict` they also differ where reasoning-gym's own verifiers are wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import pickle
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SCRIPT = "environments/reasoning_gym_environment/reasoning_gym_environment.py"
GROUP_SIZE = 8
LIMIT = 8192
"""The maximal length of a sequence. A token of the mock server is one byte."""
LONGEST_QUESTION = 1500
VARIABLES = {"PYTHONHASHSEED": "0", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
TIMES = ("perf", "_time", "timings", "server_")
"""Parts of the names of metrics that measure time or the server."""


@dataclass(frozen=True)
class Group:
    """An item of a task, with its completions by kind."""

    number: int
    plan: str
    task: str
    seed: int
    entry: dict[str, Any]
    texts: Mapping[str, str]


def texts_of(right: str, other: str) -> dict[str, str]:
    """Completions by kind. `other` is the answer to another item."""
    answers = {
        "right": right,
        "another item's answer": other,
        "in bold": f"**{right}**",
        "boxed": f"\\boxed{{{right}}}",
        "a part of it": right[: max(1, len(right) // 2)],
        "empty": "",
    }
    texts = {kind: f"<think>I guess.</think>\n<answer>{answer}</answer>" for kind, answer in answers.items()}
    return texts | {
        "wrong": "<think>I guess.</think><answer>no idea</answer>",
        "wrong one in the thinking": f"<think>Is it <answer>no idea</answer>?</think><answer>{right}</answer>",
        "answer in the thinking only": f"<think>It is <answer>{right}</answer>.</think>I am done.",
        "thinking never ends": f"<think>It is <answer>{right}</answer>",
        "no opening tag": f"Is it <answer>no idea</answer>?</think><answer>{right}</answer>",
        "no tags": f"The answer is {right}.",
        "answer never ends": f"<think>Now.</think><answer>{right}",
        "two answers": f"<answer>{right}</answer> or <answer>no idea</answer>",
        "upper-case tags": f"<think>Hm.</think><ANSWER>{right}</ANSWER>",
        "blank in the tag": f"<think>Hm.</think><answer >{right}</answer>",
        "empty pair and an answer": f"<think>Hm.</think><answer></answer> That is, <answer>{right}</answer>",
        "mention of the tag": f"<think>Hm.</think>I put it into <answer> tags: <answer>{right}</answer>",
        "second answer never ends": f"<think>Hm.</think><answer>{right}</answer> and <answer>no idea",
        "short": "5",
        "truncated": "<think>" + "On and on. " * LIMIT,
    }


def plan_of(number: int, texts: Mapping[str, str], rng: random.Random) -> tuple[str, dict[str, str]]:
    """The kind of a group, and its completions. One group in ten has only long right ones, and one only wrong ones."""
    if number % 10 == 0:
        lengths = range(LIMIT - 700 * GROUP_SIZE, LIMIT, 700)
        longs = {f"right, {length}": texts["right"].replace("guess", "x" * (length - 1700)) for length in lengths}
        return "all right, some too long", longs
    if number % 10 == 1:
        return "all wrong", {f"wrong {place}": f"{texts['wrong']} {place}" for place in range(GROUP_SIZE)}
    # A right and a wrong completion, so that both environments send the group.
    kinds = ["right", "wrong", *rng.sample(sorted(texts.keys() - {"right", "wrong"}), GROUP_SIZE - 2)]
    return "mixed", {kind: texts[kind] for kind in kinds}


def make_groups(count: int, seed: int) -> list[Group]:
    """Items of all tasks in turn. Items that cannot be made, or have no known answer, are skipped."""
    from reasoning_gym_environment import Tasks
    from reasoning_gym_environment.errors import GenerationError
    from reasoning_gym_environment.verification.entries import right_answer

    groups: list[Group] = []
    with Tasks(verification="native") as tasks:
        for number in range(count):
            task = tasks.names[number % len(tasks.names)]
            rng = random.Random(f"{seed} {number}")
            item_seed = rng.randrange(2**32 - 1)
            try:
                entry = tasks.make(task, item_seed, {}).entry
                other = str(tasks.make(task, item_seed + 1, {}).entry["answer"])
            except GenerationError:
                continue
            right = right_answer(task, entry)
            if right is None or len(entry["question"]) > LONGEST_QUESTION or len(right) > LONGEST_QUESTION:
                continue
            plan, texts = plan_of(number, texts_of(right, other), rng)
            groups.append(Group(number, plan, task, item_seed, entry, texts))
    return groups


async def observe(options: argparse.Namespace, groups: Sequence[Group], folder: Path) -> dict[str, Any]:
    """Sample and score all groups. Returns the groups, the lines of the dumps and the metrics."""
    import reasoning_gym
    import wandb
    from atroposlib.envs.base import APIServerConfig

    from testing.byte_tokenizer import build_byte_tokenizer, save_byte_tokenizer
    from testing.inference_server import ThreadedMockServer

    # The original shuffles groups with the global generator.
    random.seed(0)
    metrics: dict[str, Any] = {}
    wandb.log = lambda values, **_: metrics.update(values)
    tokenizer = build_byte_tokenizer()
    dumps = folder / "dumps"
    replies: list[str] = []
    is_original = options.side == "original"
    # The original has the name of this package, so it gets another name.
    shutil.copy(options.atropos / SCRIPT, folder / "original_environment.py")
    sys.path.insert(0, str(folder))
    module = importlib.import_module("original_environment" if is_original else "reasoning_gym_environment")
    own = {} if is_original else {"verification": options.verification, "data_dumps_dir": str(dumps)}
    with ThreadedMockServer(lambda _: replies.pop(0) if replies else "<think>Hm.</think>", tokenizer) as server:
        config = module.ReasoningGymEnvConfig(
            tokenizer_name=str(save_byte_tokenizer(folder / "tokenizer")),
            group_size=GROUP_SIZE,
            max_token_length=LIMIT,
            dump_rollouts=True,
            dump_failed_rollouts=True,
            complexity_mode="curriculum",
            num_eval_samples_per_task=1,
            **own,
        )
        model = {"server_type": "vllm", "model_name": "mock", "tokenizer_name": config.tokenizer_name, "api_key": "x"}
        api = APIServerConfig(base_url=server.base_url, health_check=False, **model)
        env = module.ReasoningGymEnv(config, [api], slurm=False)
        env.datadumps_dir = str(dumps)
        await env.setup()
        found = []
        for group in groups:
            system_message = (("role", "system"), ("content", f"Use <answer> tags. Group {group.number}."))
            user_message = (("role", "user"), ("content", group.entry["question"]))
            dataset = reasoning_gym.create_dataset(group.task, seed=group.seed, size=1)
            item = ((system_message, user_message), group.entry, dataset)
            replies[:] = group.texts.values()
            result, _ = await env.collect_trajectories(item)
            if result is not None:
                await env.handle_send_to_api(result, item, do_send_to_api=False)
            found.append(None if result is None else dict(rows_of(result, tokenizer, group)))
        replies.clear()
        await env.evaluate()
        await env.wandb_log({})
        if is_original:
            await env._save_rollouts_to_jsonl()
            await env._save_failed_rollouts_to_jsonl()
        await env.close()
    # A table is compared by its columns. Metrics of tasks have one name.
    by_task = re.compile("|".join(f"/{task}/" for task in reasoning_gym.factory.DATASETS))
    values = {by_task.sub("/TASK/", name): getattr(value, "columns", value) for name, value in metrics.items()}
    return {"groups": found, "dumps": list(lines_of(dumps, env.run_uuid)), "metrics": values}


def rows_of(result: Mapping[str, Any], tokenizer: Any, group: Group) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a group holds for each of its completions, by kind."""
    names = ("scores", "tokens", "masks", "inference_logprobs", "overrides")
    for values in zip(*(result[name] for name in names), strict=True):
        row = dict(zip(names, values, strict=True))
        completion = [token for token in row["masks"] if token >= 0]
        text = tokenizer.decode(completion, skip_special_tokens=True)
        # A truncated completion is the beginning of its text.
        kinds = [kind for kind, whole in group.texts.items() if whole[: max(len(text), 100)] == text]
        yield kinds[0], row


def lines_of(folder: Path, run: str) -> Iterator[dict[str, Any]]:
    """The lines of the dumps: the kind of file, the number of the group and its scores."""
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            rollouts = line["rollouts"]
            number = int(rollouts[0]["conversation"][0]["content"].split()[-1].rstrip("."))
            scores = sorted(round(rollout["score"], 9) for rollout in rollouts)
            name = path.name.replace(run, "RUN")
            yield {"file": name[:-10], "group": number, "scores": scores}


def compare(groups: Sequence[Group], original: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    differences: dict[str, dict[str, dict[str, Any]]] = {}
    missing: dict[str, set[str]] = {"original": set(), "ours": set()}
    sent_by_one: dict[str, list[str]] = {"original": [], "ours": []}
    for group, there, here in zip(groups, original["groups"], ours["groups"], strict=True):
        if there is not None and here is not None:
            missing["original"] |= here.keys() - there.keys()
            missing["ours"] |= there.keys() - here.keys()
            compare_rows(differences, group, there, here)
        elif there is not here:
            sent_by_one["original" if here is None else "ours"].append(f"group {group.number}, {group.plan}")
    names = [side["metrics"].keys() for side in (original, ours)]
    common = sorted(name for name in names[0] & names[1] if not any(part in name for part in TIMES))
    pairs = {name: [original["metrics"][name], ours["metrics"][name]] for name in common}
    return {
        "completions": differences,
        "missing": {name: sorted(kinds) for name, kinds in missing.items()},
        "sent_by_one": sent_by_one,
        "dumps": compare_dumps(original["dumps"], ours["dumps"]),
        "metric_names": {"original": sorted(names[0] - names[1]), "ours": sorted(names[1] - names[0])},
        "metric_values": {name: pair for name, pair in pairs.items() if pair[0] != pair[1]},
    }


def compare_rows(differences: dict[str, Any], group: Group, there: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Count what differs, by the name of the value and the kind of the completion. The first example is kept."""
    for kind in there.keys() & here.keys():
        for name, value in there[kind].items():
            if value != here[kind][name]:
                example = {"task": group.task, "seed": group.seed, "text": group.texts[kind][:200]}
                values = {"original": str(value)[:100], "ours": str(here[kind][name])[:100]}
                row = differences.setdefault(name, {}).setdefault(kind, {"differ": 0, **example, **values})
                row["differ"] += 1


def compare_dumps(there: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    lines = [{f"{line['file']}, group {line['group']}": line["scores"] for line in side} for side in (there, here)]
    both = sorted(lines[0].keys() & lines[1].keys())
    return {
        "files": [sorted({line["file"] for line in side}) for side in (there, here)],
        "original_only": sorted(lines[0].keys() - lines[1].keys()),
        "ours_only": sorted(lines[1].keys() - lines[0].keys()),
        "other_scores": [name for name in both if lines[0][name] != lines[1][name]],
    }


def run_side(side: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Observe an environment in a process of its own. Raises SystemExit with its last lines if it fails."""
    place = folder / side
    place.mkdir()
    command = [sys.executable, "-W", "ignore", __file__, str(options.atropos)]
    command += ["--side", side, "--verification", options.verification]
    variables = {**os.environ, **VARIABLES}
    ended = subprocess.run(command, cwd=place, env=variables, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"The run of {side} failed:\n{ended.stderr[-3000:]}")
    return dict(json.loads((place / "found.json").read_text(encoding="utf-8")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("atropos", type=Path, help="checkout of Atropos")
    parser.add_argument("--groups", type=int, default=200, help="number of groups (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the items and completions (default: 1)")
    parser.add_argument("--verification", choices=("native", "strict"), default="native", help="of this project")
    parser.add_argument("--side", choices=("original", "ours"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.atropos = options.atropos.resolve()
    if not (options.atropos / SCRIPT).is_file():
        sys.exit(f"Expected a checkout of Atropos, but {options.atropos / SCRIPT} does not exist.")
    if options.side:
        groups = pickle.loads(Path("../groups.pickle").read_bytes())
        found = asyncio.run(observe(options, groups, Path.cwd()))
        Path("found.json").write_text(json.dumps(found, default=float), encoding="utf-8")
        return
    groups = make_groups(options.groups, options.seed)
    with tempfile.TemporaryDirectory(prefix="compare-") as name:
        folder = Path(name)
        (folder / "groups.pickle").write_bytes(pickle.dumps(groups))
        sides = [run_side(side, folder, options) for side in ("original", "ours")]
    print(json.dumps({"groups": len(groups), **compare(groups, *sides)}, indent=1))


if __name__ == "__main__":
    main()
