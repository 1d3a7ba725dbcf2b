"""What a long run holds and leaves: python benchmarks/soak.py [--quick] [--groups N] [--tasks NAMES] > soak.json

Real processes and real HTTP: atroposlib's run-api, this project's `serve`, the mock inference server with a cheap
student (in a process of its own, so that neither its memory nor its work counts as the environment's), and a trainer
reduced to taking batches as fast as they come. Both dumps are on, so that every scored group has a line; checkpoints
are written every five steps; the curriculum and the choice of tasks by learnability are on. Linux only: it reads /proc.

    soak            one instance, ten thousand groups (--groups)
    one_instance    one instance, a quarter of that, as the measure for
    instances       four instances (--instances) on one run-api, a quarter of that together, each with its SLURM_PROCID

Each phase starts afresh and reports:

groups_per_s    scored groups, counted by their lines on disk: over all, the first and the last tenth
cpu_ms_per_group  processor time of serve and of its workers after the start-up, which other load hardly changes
held            by serve and by all its descendants, sampled every few seconds: resident memory in MB (rss: pages that
                processes share count for each; pss: in parts), file handles, threads, processes; after 5 % of the
                groups, in the middle, at the end (each the median of three samples), the highest, and slopes per
                1000 groups by least squares after 20 % and after 50 % (null: too few samples)
after_sigterm   while groups are in flight: seconds until the end, exit codes, processes of the session left over
delivery        groups on disk whose scores differ, which are the ones that are sent, against those that run-api got.
                At a signal, up to 16 groups an instance may be scored and not yet sent
dumps           lines that are not JSON, items twice; indices_not_dumped are items skipped, given up, or in flight
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from soak_parts.phase import WORKERS_PER_INSTANCE, Phase, Plan

from reasoning_gym_environment.errors import EnvironmentSetupError
from reasoning_gym_environment.utils.aio import STOP_S

GROUPS = 10_000
QUICK_GROUPS = 300
TASKS = (
    "chain_sum,products,gcd,lcm,spell_backward,count_bits,letter_counting,"  # the student solves these
    "basic_arithmetic,base_conversion,number_sorting,word_sorting,caesar_cipher,simple_equations,aiw,knights_knaves,"
    "family_relationships,course_schedule,largest_island,mini_sudoku,rotate_matrix,arc_1d,number_sequence,"
    "countdown,polynomial_multiplication,binary_matrix"  # their verifiers evaluate the answer
)
"""Tasks that take a few milliseconds an item, from eleven categories."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, default=GROUPS, help=f"groups of the first phase (default: {GROUPS})")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_GROUPS} groups")
    parser.add_argument("--tasks", default=TASKS, help=f"what include_tasks is set to; * for all (default: {TASKS})")
    parser.add_argument("--instances", type=int, default=4, help="instances to compare with one; 1: no comparison")
    parser.add_argument("--sample-every", type=float, default=3.0, help="seconds between two samples (default: 3)")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds that a request takes (default: 0)")
    parser.add_argument("--folder", type=Path, help="keep logs, dumps and checkpoints here (default: removed)")
    parser.add_argument("settings", nargs="*", help="more flags for serve, after --")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.groups, chosen.sample_every = QUICK_GROUPS, 0.5
    if chosen.groups < 40 or chosen.instances < 1 or chosen.sample_every <= 0:
        parser.error("--groups must be at least 40, --instances at least 1 and --sample-every positive")
    return chosen


def plans(chosen: argparse.Namespace) -> list[Plan]:
    """The phases, in order."""
    common = {
        "tasks": chosen.tasks,
        "sample_every_s": chosen.sample_every,
        "latency_s": chosen.latency,
        "settings": chosen.settings,
    }
    phases = [("soak", chosen.groups, 1)]
    if chosen.instances > 1:
        phases += [("one_instance", chosen.groups // 4, 1), ("instances", chosen.groups // 4, chosen.instances)]
    return [Plan(name, groups, instances, **common) for name, groups, instances in phases]


async def measure(chosen: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The whole report. A signal ends all processes, then this with CancelledError."""
    this = asyncio.current_task()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    report: dict[str, Any] = {
        "cores": os.cpu_count(),
        "load_average_before": [round(load, 2) for load in os.getloadavg()],
        "tasks": chosen.tasks,
        "settings": chosen.settings,
        "latency_s": chosen.latency,
        "groups_in_flight_per_instance": WORKERS_PER_INSTANCE,
        "killed_if_not_ended_after_s": STOP_S,
    }
    for plan in plans(chosen):
        report[plan.name] = await Phase(plan, folder / plan.name).run()
    if chosen.instances > 1:
        one, several = (report[name]["groups_per_s"]["all"] for name in ("one_instance", "instances"))
        report["scaling"] = {
            "instances": chosen.instances,
            "times_one_instance": round(several / one, 2),
            "note": f"run-api, student and trainer share the {os.cpu_count()} cores with the instances",
        }
    return report


def main() -> None:
    chosen = options()
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = chosen.folder.resolve() if chosen.folder else Path(temporary)
        try:
            report = asyncio.run(measure(chosen, folder))
        except asyncio.CancelledError:
            sys.exit("Stopped; nothing is left running.")
        except EnvironmentSetupError as error:
            sys.exit(str(error))
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
