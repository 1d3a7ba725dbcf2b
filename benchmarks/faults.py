"""Measure the losses after faults: python benchmarks/faults.py [--quick] [NAME ...] > faults.json

Each scenario is a training run of real processes over real HTTP (atroposlib's run-api, `serve`, a mock inference
server, a small trainer) with a fault. Afterwards the run continues until SIGTERM ends it, and the script counts losses:

    lost_items      drawn items that are neither in a dump nor pending in the last checkpoint
    lost_groups     groups that the trainer received, but no dump contains
    groups_made_twice   items that were sampled again after a kill, because no checkpoint had recorded their end

kill_9       four instances, killed twenty times in all at random moments, and started again
disk_full    the disk is full for a while (simulated by a limit on file sizes)
inference    the inference server is gone, answers 500, cuts replies, hangs: ten seconds each
api_restart  run-api is killed and started again, its trainer comes late; then it hangs, and its trainer pauses
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tqdm import tqdm

from testing.faults.scenarios import SCENARIOS

QUICK: dict[str, dict[str, Any]] = {
    "kill_9": {"kills": 4},
    "inference": {"for_s": 3.0},
    "api_restart": {"for_s": 2.0},
}


async def run(names: list[str], folder: Path, *, quick: bool) -> dict[str, Any]:
    report: dict[str, Any] = {}
    for name in tqdm(names, desc="faults", unit="scenario"):
        report[name] = await SCENARIOS[name](folder / name, **(QUICK.get(name, {}) if quick else {}))
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"scenarios (default: all of {', '.join(SCENARIOS)})")
    parser.add_argument("--quick", action="store_true", help="fewer kills and shorter outages")
    parser.add_argument("--folder", type=Path, help="keep logs, dumps and checkpoints here (default: removed)")
    options = parser.parse_args()
    if unknown := sorted(set(options.names) - SCENARIOS.keys()):
        parser.error(f"unknown scenario {', '.join(unknown)}: expected {', '.join(SCENARIOS)}")
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        folder = options.folder.resolve() if options.folder else Path(temporary)
        print(json.dumps(asyncio.run(run(options.names or list(SCENARIOS), folder, quick=options.quick)), indent=1))


if __name__ == "__main__":
    main()
