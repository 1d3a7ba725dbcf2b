"""Train a language model through the environment, with one command: from the model to its results.

    python -m examples.train --model Qwen/Qwen2.5-0.5B-Instruct        # on a machine with one GPU or more
    python -m examples.train --model small                             # on a processor, with a model from a package

    the model ──> (cold start) ──> vLLM ──> evaluate ──> run-api, serve and the trainer ──> evaluate ──> report

Each part is a process of its own with a log file: a stock `vllm serve`, Atropos' run-api, this project's `serve` and
`evaluate`, and trainer.py. Ctrl-C stops all of them. The same command then resumes with the weights, the optimizer, the
environment's checkpoint and all answered questions. With one GPU, vLLM and the trainer share it; with two or more, vLLM
has the first and the trainer the second.

Run it in the Python environment that has vLLM and torch. `serve`, `evaluate` and run-api come from the environment of
this project (--bin).
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

import torch

from .trainer import DTYPE, SAVE_EVERY, give_to_server

ROOT = Path(__file__).resolve().parents[2]
TASKS = "spell_backward,leg_counting,gcd,chain_sum,basic_arithmetic,letter_counting,products,base_conversion"

SMALL = "small"
SMALL_COLD_START = 768
"""The small model never uses the answer format, so it sees this many examples of it first."""

SERVED_NAME = "policy"
"""The name under which vLLM serves the model, whatever its weights are."""

GPU_SHARE_ALONE = 0.9
GPU_SHARE_BESIDE_TRAINER = 0.4
"""The share of the memory of its GPU that vLLM takes."""

START_LIMIT_S = 1200.0
"""vLLM may download a model and compile it. If it has not answered by then, the run ends."""


def say(who: str, text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {who:10} {text}", flush=True)


@contextlib.contextmanager
def process(command: list[str], log: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output in `log`. It ends with all its children when the block ends."""
    with log.open("ab") as output:
        # A session of its own: Ctrl-C reaches this launcher alone, which stops the others in the right order.
        started = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, env={**os.environ, **environment}, start_new_session=True
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


def wait_until_ready(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a server answers. Raises SystemExit if it has ended, or does not answer in time."""
    give_up_at = time.monotonic() + START_LIMIT_S
    while time.monotonic() < give_up_at:
        if server.poll() is not None:
            raise SystemExit(f"The process behind {url} has ended with code {server.returncode}: see {log}.")
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(1)
    raise SystemExit(f"{url} has not answered for {START_LIMIT_S:.0f} s: see {log}.")


def run(command: list[str], log: Path) -> None:
    """Run a command to its end. Raises SystemExit if it fails."""
    with process(command, log) as running:
        code = running.wait()
    if code:
        raise SystemExit(f"{' '.join(command[:4])} ... has ended with code {code}: see {log}.")


class Training:
    """One training: its folder, its processes and its stages."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.out: Path = options.out.resolve()
        self.logs = self.out / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.model: str = options.model
        self.api = f"http://127.0.0.1:{options.port}"
        self.server = f"http://127.0.0.1:{options.port + 1}"
        self.gpus = torch.cuda.device_count()

    def program(self, name: str) -> str:
        """A command of the project's Python environment."""
        return str(self.options.bin / name)

    @property
    def step(self) -> int:
        """Steps that the trainer has made. It may resume some steps earlier, where it saved its state."""
        steps = self.out / "steps.jsonl"
        lines = steps.read_text(encoding="utf-8").splitlines() if steps.exists() else []
        return json.loads(lines[-1])["step"] if lines else 0

    def prepare(self) -> None:
        """Find the model, and make the cold start, unless both are done."""
        if self.model == SMALL:
            self.model = str(self.out / "small-model")
            run([sys.executable, "-m", "examples.train.small_model", self.model], self.logs / "model.log")
            say("model", f"SmolLM2-135M-Instruct is in {self.model}")
        count = self.options.cold_start
        if not count:
            return
        fine_tuned = self.out / "cold-start-model"
        examples = self.out / "cold-start-examples"
        log = self.logs / "cold-start.log"
        if not (fine_tuned / "config.json").exists():
            say("cold start", f"{count} examples of the answer format; log: {log}")
            if not examples.exists():
                export = [self.program("reasoning-gym-env"), "export", "cold-start", "--to", str(examples)]
                run([*export, "--count", str(count), "--tasks", self.options.tasks], log)
            fine_tune = [sys.executable, "-m", "examples.train.cold_start", self.model]
            data = str(examples / "data" / "train.jsonl")
            run([*fine_tune, data, str(fine_tuned), "--threads", str(self.options.threads)], log)
        self.model = str(fine_tuned)

    @contextlib.contextmanager
    def vllm(self) -> Iterator[None]:
        log = self.logs / "vllm.log"
        command = [
            str(Path(sys.executable).with_name("vllm")), "serve", self.model, "--served-model-name", SERVED_NAME,
            "--host", "127.0.0.1", "--port", str(self.options.port + 1),
            "--dtype", str(DTYPE).removeprefix("torch."), "--max-model-len", str(2 * self.options.max_tokens),
            "--max-num-seqs", "128", "--generation-config", "vllm",
        ]  # fmt: skip
        # The development mode has the endpoint that loads weights. Only this machine can reach it.
        environment = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1"}
        if self.gpus:
            share = GPU_SHARE_BESIDE_TRAINER if self.gpus == 1 else GPU_SHARE_ALONE
            command += ["--gpu-memory-utilization", str(share)]
            environment["CUDA_VISIBLE_DEVICES"] = "0"
        else:
            # Without a compilation, which takes minutes on a processor.
            command += ["--enforce-eager"]
            environment |= {"VLLM_TARGET_DEVICE": "cpu", "VLLM_CPU_KVCACHE_SPACE": "1"}
            environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(self.options.threads)}
        say("vLLM", f"starts with {self.model}; log: {log}")
        with process(command, log, **environment) as server:
            wait_until_ready(f"{self.server}/health", server, log)
            say("vLLM", f"is ready at {self.server}")
            yield

    def evaluate(self, when: str) -> None:
        """Ask the held-out questions, unless they are answered."""
        if self.step:
            # A vLLM that has just started has the weights from before the training.
            give_to_server(self.server, self.out / f"weights-{self.step % 2}")
        folder = self.out / f"evaluation-{when}"
        log = self.logs / f"evaluate-{when}.log"
        if not (folder / "done").exists():
            say("evaluate", f"asks the held-out questions {when} training; log: {log}")
            command = [
                self.program("reasoning-gym-env"), "evaluate", "--openai.server_type", "openai",
                "--openai.base_url", f"{self.server}/v1", "--openai.model_name", SERVED_NAME,
                "--env.include_tasks", self.options.tasks, "--env.use_wandb", "False",
                "--env.max_token_length", str(self.options.max_tokens), "--env.eval_temperature", "1.0",
                "--env.num_eval_samples_per_task", str(self.options.questions),
                "--env.eval_complexity", self.options.eval_complexity,
                "--env.data_dir_to_save_evals", str(folder), *self.options.settings,
            ]  # fmt: skip
            run(command, log)
            (folder / "done").touch()
        result = [
            line
            for line in log.read_text(encoding="utf-8").splitlines()
            if "Evaluation " in line and " completions of " in line
        ]
        say("evaluate", f"{when} training: {result[-1].split('Evaluation ', 1)[1] if result else f'see {log}'}")

    def train(self) -> None:
        """Train until the trainer has made all its steps, with a line for each step."""
        steps = self.options.steps
        if self.step >= steps:
            return
        serve = [
            self.program("reasoning-gym-env"), "serve", "--openai.server_type", "vllm",
            "--openai.base_url", f"{self.server}/v1", "--openai.model_name", SERVED_NAME,
            "--env.tokenizer_name", self.model, "--env.rollout_server_url", self.api,
            "--env.include_tasks", self.options.tasks, "--env.seed", str(self.options.seed),
            "--env.max_token_length", str(self.options.max_tokens), "--env.group_size", str(self.options.group_size),
            "--env.batch_size", str(self.options.groups * self.options.group_size),
            "--env.total_steps", str(steps), "--env.steps_per_eval", "0", "--env.use_wandb", "False",
            "--env.run_id", "train", "--env.data_dumps_dir", str(self.out / "dumps"), "--env.dump_rollouts", "True",
            *self.options.settings,
        ]  # fmt: skip
        trainer = [
            sys.executable, "-m", "examples.train.trainer", "--model", self.model, "--out", str(self.out),
            "--api", self.api, "--server", self.server, "--steps", str(steps), "--rate", str(self.options.rate),
            "--groups", str(self.options.groups), "--group-size", str(self.options.group_size),
            "--max-tokens", str(self.options.max_tokens), "--threads", str(self.options.threads),
            *(["--shuffle-rewards"] if self.options.shuffle_rewards else []),
        ]  # fmt: skip
        run_api = [self.program("run-api"), "--host", "127.0.0.1", "--port", str(self.options.port)]
        gpu = {"CUDA_VISIBLE_DEVICES": "1"} if self.gpus > 1 else {}
        logs = {name: self.logs / f"{name}.log" for name in ("run-api", "trainer", "serve")}
        with process(run_api, logs["run-api"]) as api:
            wait_until_ready(f"{self.api}/info", api, logs["run-api"])
            say("run-api", f"is ready at {self.api}; log: {logs['run-api']}")
            with process(trainer, logs["trainer"], **gpu) as learning, process(serve, logs["serve"]) as serving:
                say("serve", f"starts; log: {logs['serve']}")
                say("trainer", f"starts at step {self.step} of {steps}; log: {logs['trainer']}")
                self._follow(learning, serving)
            if learning.returncode:
                raise SystemExit(f"The trainer has ended with code {learning.returncode}: see {logs['trainer']}.")

    def _follow(self, learning: subprocess.Popen[bytes], serving: subprocess.Popen[bytes]) -> None:
        """Print a line for each step until the trainer ends. Raises SystemExit if `serve` fails."""
        shown = self.step - self.step % SAVE_EVERY
        while True:
            has_ended = learning.poll() is not None
            lines = (self.out / "steps.jsonl").read_text(encoding="utf-8").splitlines() if self.step > shown else []
            for line in map(json.loads, lines):
                if line["step"] > shown:
                    shown = line["step"]
                    words = f"step {shown} of {self.options.steps}: mean reward {line['reward']:.3f}"
                    words += (
                        f", {line['tokens']} tokens, waited {line['wait_s']:.0f} s, learned {line['learn_s']:.0f} s"
                    )
                    say("trainer", words)
            if has_ended:
                return
            # `serve` ends by itself at the last step.
            if serving.poll():
                raise SystemExit(f"serve has ended with code {serving.returncode}: see {self.logs / 'serve.log'}.")
            time.sleep(1)

    def report(self) -> None:
        """Compare both evaluations, and write the page."""
        page = self.out / "report.html"
        before, after = (str(self.out / f"evaluation-{when}") for when in ("before", "after"))
        command = [self.program("reasoning-gym-env"), "report", "--compare", before, after, "-o", str(page)]
        subprocess.run([*command, str(self.out / "dumps")], cwd=ROOT, check=True)


def options_of(arguments: list[str] | None) -> argparse.Namespace:
    has_gpu = torch.cuda.device_count() > 0
    parser = argparse.ArgumentParser(
        prog="python -m examples.train",
        description="Train a language model with GRPO: run-api, vLLM, serve and a trainer, with an evaluation before "
        "and after. The same command resumes a training that was stopped.",
        epilog="Everything after -- is given to `serve` and `evaluate`, such as: -- --env.complexity_mode random",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--model", required=True, help="name or folder, or `small`: SmolLM2-135M-Instruct of a package")
    parser.add_argument("--tasks", default=TASKS, help="names, patterns or categories, separated by commas")
    parser.add_argument("--steps", type=int, default=200 if has_gpu else 40, help="steps of the trainer")
    parser.add_argument("--out", type=Path, default=ROOT / "data" / "train", help="folder of this training")
    parser.add_argument("--cold-start", type=int, default=None, metavar="N", help="examples of the answer format first")
    parser.add_argument("--groups", type=int, default=16 if has_gpu else 8, help="groups of a step")
    parser.add_argument("--group-size", type=int, default=8, help="completions of a group")
    parser.add_argument("--max-tokens", type=int, default=1024 if has_gpu else 384, help="of prompt and completion")
    parser.add_argument("--rate", type=float, default=2e-6 if has_gpu else 2e-5, help="learning rate")
    parser.add_argument("--questions", type=int, default=40, help="held-out questions of each task")
    parser.add_argument("--eval-complexity", default="0", help="their difficulty, 0 to 1; none: default configs")
    parser.add_argument("--seed", type=int, default=42, help="of the items")
    # The other processes need a core: two threads that share one with them wait for each other at every layer.
    threads = max(1, (os.cpu_count() or 2) - 1)
    parser.add_argument("--threads", type=int, default=threads, help="threads of vLLM and torch on a processor")
    parser.add_argument("--shuffle-rewards", action="store_true", help="a control, in which nothing can be learned")
    parser.add_argument("--port", type=int, default=9810, help="port of run-api; vLLM has the next one")
    parser.add_argument("--bin", type=Path, default=ROOT / ".venv" / "bin", help="folder of the project's commands")
    parser.add_argument("settings", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.cold_start is None:
        options.cold_start = SMALL_COLD_START if options.model == SMALL else 0
    if not (options.bin / "reasoning-gym-env").exists():
        parser.error(f"--bin {options.bin} has no reasoning-gym-env: run `make demo`, or name its folder")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = options_of(arguments)
    # A launcher that is ended by another program stops its processes too.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    training = Training(options)
    try:
        training.prepare()
        with training.vllm():
            if not training.step:
                training.evaluate("before")
            training.train()
            training.evaluate("after")
        training.report()
    except KeyboardInterrupt:
        say("launcher", "stopped; the same command resumes")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
