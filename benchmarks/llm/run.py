"""Train a real language model through the real environment: one arm of the comparison, from the model to its results.

    python benchmarks/llm/run.py --arm ours --seed 1 [--minutes 60] [--steps 120]

    the model ──> examples ──> cold start, once for all arms
        ──> vLLM, run-api, `serve`, trainer ──> held-out questions by `evaluate` at steps 0, 60, 120 ──> results.json

All is real: a stock `vllm serve`, Atropos' run-api, this project's `serve` and `evaluate`. Arms differ in nothing but
this:

    ours       the defaults of the commands: curriculum, tasks chosen by learnability, strict verification
    original   the original environment's way: all tasks alike, reasoning-gym's default configs and its own scores
    shuffled   as ours, but the trainer permutes the rewards of each group: a control, that should learn nothing

Whatever ends the command, the same one resumes: weights, optimizer, the environment's state and each answered question
are kept. Run it with the environment that `make llm` sets up; `serve` and `evaluate` run in the project's own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TASKS = "spell_backward,leg_counting,gcd,chain_sum,basic_arithmetic,letter_counting,products,base_conversion"
TASK_COUNT = 8
MODEL_NAME = "smollm2"
MAX_TOKENS = 384
STEPS_BETWEEN = 60
SHUFFLED_STEPS = 60
ARMS = {
    "ours": [],
    "original": [
        "--env.complexity_mode", "none", "--env.task_sampling", "uniform",
        "--env.verification", "native", "--env.partial_credit", "native",
    ],
    "shuffled": [],
}  # fmt: skip
"""What each arm sets beside the defaults of `serve`."""

QUESTIONS = {
    "easiest": ["--env.eval_complexity", "0", "--env.num_eval_samples_per_task", "75", "--env.eval_completions", "4"],
    "default": ["--env.num_eval_samples_per_task", "25", "--env.eval_completions", "4"],
}  # fmt: skip
"""The sets of held-out questions: 414 at the easiest levels, 200 of the default configs, four completions each.

Three tasks have fewer than 75 different questions at their easiest level.
"""


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextlib.contextmanager
def process(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process beside us, with its output in `log`; ended with its children when the block ends."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        started = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **environment}, start_new_session=True
        )
        try:
            yield started
        finally:
            for number, patience_s in ((signal.SIGTERM, 60), (signal.SIGKILL, 10)):
                if started.poll() is None:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(started.pid, number)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        started.wait(patience_s)


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path, limit_s: float = 600.0) -> None:
    """Until a server answers. Raises SystemExit if it ended or the time is over."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        if server.poll() is not None:
            raise SystemExit(f"The server of {url} ended with {server.returncode}: see {log}.")
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(1)
    raise SystemExit(f"The server of {url} did not answer within {limit_s:.0f} s: see {log}.")


def run(command: list[str], log: Path | None = None) -> None:
    """Run a command to its end. Raises SystemExit if it fails."""
    if log is None:
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
    else:
        with log.open("ab") as output:
            code = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False).returncode
    if code:
        raise SystemExit(f"{' '.join(command[:3])} ... ended with {code}" + (f": see {log}." if log else "."))


class Arm:
    """One arm: its folders, its servers and the stages of its run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.arm, self.seed, self.port = options.arm, options.seed, options.port
        self.work: Path = options.work.resolve()
        self.out = self.work / f"{self.arm}-{self.seed}"
        self.logs = self.out / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.cold = self.work / "cold"
        self.api, self.server = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port + 1}"
        self.command = str(options.bin / "reasoning-gym-env")
        self.run_api = str(options.bin / "run-api")
        self.python = str(options.bin / "python")

    @property
    def step(self) -> int:
        """Steps that the trainer has saved."""
        return max((int(path.name[5:]) for path in self.out.glob("step-*")), default=0)

    def prepare(self) -> None:
        """The model, the examples and the cold start, unless they are there."""
        model, examples = self.work / "model", self.work / "examples.jsonl"
        run([sys.executable, str(HERE / "model.py"), str(model)])
        if not examples.exists():
            run([self.python, str(HERE / "examples.py"), str(examples)])
        if not (self.cold / "model.safetensors").exists():
            say("Cold start: some minutes.")
            run([sys.executable, str(HERE / "cold_start.py"), str(model), str(examples), str(self.cold)])

    @contextlib.contextmanager
    def vllm(self) -> Iterator[None]:
        log = self.logs / "vllm.log"
        command = [
            str(Path(sys.executable).with_name("vllm")), "serve", str(self.cold), "--served-model-name", MODEL_NAME,
            "--host", "127.0.0.1", "--port", str(self.port + 1), "--dtype", "bfloat16", "--max-model-len", "1024",
            "--max-num-seqs", "128",
        ]  # fmt: skip
        # The development mode has the endpoint that reloads weights.
        on_cpu = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        quiet = {"VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
        with process(command, log, VLLM_SERVER_DEV_MODE="1", **on_cpu, **quiet) as server:
            say("Starting vLLM.")
            wait_for(f"{self.server}/health", server, log)
            yield

    def train(self, until_step: int, minutes: float) -> None:
        """Train up to a step, or for so long."""
        say(f"Training from step {self.step} to {until_step}, for {minutes:.0f} minutes at most.")
        serve = [
            self.command, "serve", "--openai.server_type", "vllm", "--openai.base_url", f"{self.server}/v1",
            "--openai.model_name", MODEL_NAME, "--env.tokenizer_name", str(self.cold),
            "--env.rollout_server_url", self.api, "--env.max_token_length", str(MAX_TOKENS),
            "--env.group_size", "8", "--env.batch_size", "64",
            "--env.total_steps", "1000000", "--env.steps_per_eval", "1000000", "--env.include_tasks", TASKS,
            "--env.use_wandb", "False", "--env.seed", str(self.seed), "--env.run_id", f"{self.arm}-{self.seed}",
            "--env.data_dumps_dir", str(self.out / "dumps"), "--env.dump_rollouts", "True",
            "--env.num_scoring_workers", "1", *ARMS[self.arm],
        ]  # fmt: skip
        trainer = [
            sys.executable, str(HERE / "train.py"), "--model", str(self.cold), "--out", str(self.out),
            "--api", self.api, "--server", self.server, "--until-step", str(until_step), "--minutes", str(minutes),
            "--max-tokens", str(MAX_TOKENS),
            *(["--shuffle", str(self.seed)] if self.arm == "shuffled" else []),
        ]  # fmt: skip
        with process([self.run_api, "--host", "127.0.0.1", "--port", str(self.port)], self.logs / "run-api.log") as api:
            wait_for(f"{self.api}/info", api, self.logs / "run-api.log")
            with (
                process(trainer, self.logs / "trainer.log") as learning,
                process(serve, self.logs / "serve.log") as serving,
            ):
                while learning.poll() is None:
                    if serving.poll() is not None:
                        raise SystemExit(f"serve ended with {serving.returncode}: see {self.logs / 'serve.log'}.")
                    time.sleep(1)
            if learning.returncode:
                raise SystemExit(f"The trainer ended with {learning.returncode}: see {self.logs / 'trainer.log'}.")

    def evaluate(self) -> None:
        """Give vLLM the weights of the last step, and ask the held-out questions of them unless all are answered."""
        step = self.step
        weights = self.out / f"step-{step}" if step else self.cold
        # Also where all is answered: a vLLM that has just started has the weights of the cold start.
        run([sys.executable, str(HERE / "train.py"), "--give", str(weights), "--server", self.server])
        # All arms start with the same weights, so they share the evaluation at step 0.
        folders = {name: (self.out if step else self.work) / f"eval-{step}-{name}" for name in QUESTIONS}
        if all((folder / "done").exists() for folder in folders.values()):
            return
        for name, folder in folders.items():
            say(f"Asking the questions of the set {name} at step {step}.")
            run([
                self.command, "evaluate", "--openai.server_type", "openai", "--openai.base_url", f"{self.server}/v1",
                "--openai.model_name", MODEL_NAME, "--env.max_token_length", str(MAX_TOKENS), "--env.eval_tasks", TASKS,
                "--env.include_tasks", TASKS, "--env.eval_temperature", "1.0", "--env.use_wandb", "False",
                "--env.data_dir_to_save_evals", str(folder), *QUESTIONS[name],
            ], self.logs / "evaluate.log")  # fmt: skip
            (folder / "done").touch()

    def write_results(self) -> None:
        """The figures of each step and evaluation, without texts: small enough to keep beside the scripts."""
        evaluations: dict[str, dict[str, list[list[object]]]] = {}
        for folder in sorted([*self.work.glob("eval-0-*"), *self.out.glob("eval-*")]):
            if (folder / "done").exists():
                _, step, name = folder.name.split("-")
                samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text("utf-8").splitlines()]
                exact: dict[str, list[object]] = {}
                for one in samples:
                    exact.setdefault(f"{one['task']} {one['question']}", []).append(int(one["score"] >= 0.99))
                evaluations.setdefault(step, {})[name] = [[key, *values] for key, values in sorted(exact.items())]
        steps = [json.loads(line) for line in (self.out / "steps.jsonl").read_text("utf-8").splitlines()]
        result = {"arm": self.arm, "seed": self.seed, "evaluations": evaluations, "steps": steps}
        (self.out / "results.json").write_text(json.dumps(result), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--arm", choices=sorted(ARMS), required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=90.0, help="time for training; evaluation comes on top")
    parser.add_argument("--steps", type=int, default=None, help="120, or 60 for shuffled")
    parser.add_argument("--work", type=Path, default=ROOT / "data" / "llm", help="folder of the model and all arms")
    parser.add_argument(
        "--bin", type=Path, default=ROOT / ".venv" / "bin", help="commands of the project's environment"
    )
    parser.add_argument("--port", type=int, default=9810, help="of run-api; vLLM has the next one")
    options = parser.parse_args()
    # So that whoever stops this stops its servers and its trainer too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    arm = Arm(options)
    arm.prepare()
    last = options.steps or (SHUFFLED_STEPS if arm.arm == "shuffled" else 2 * STEPS_BETWEEN)
    left_s = 60 * options.minutes
    with arm.vllm():
        arm.evaluate()
        while arm.step < last and left_s > 0:
            started = time.monotonic()
            arm.train(min(last, (arm.step // STEPS_BETWEEN + 1) * STEPS_BETWEEN), left_s / 60)
            left_s -= time.monotonic() - started
            arm.evaluate()
    arm.write_results()
    say(f"The results are in {arm.out / 'results.json'}; plot.py draws them.")


if __name__ == "__main__":
    main()
