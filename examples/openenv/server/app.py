"""The application that OpenEnv starts: `uvicorn server.app:app`. TASKS chooses the tasks, as `--tasks` does."""

import os
from pathlib import Path

import uvicorn

from reasoning_gym_environment import Tasks, new_store
from reasoning_gym_environment.integrations.openenv import build_app

TASKS = os.environ.get("TASKS", "")
GROUP_SIZE = int(os.environ.get("GROUP_SIZE", "8"))
LEVELS = Path(os.environ.get("LEVEL_STORE", "levels.sqlite"))

if not LEVELS.exists():
    new_store(LEVELS, group_size=GROUP_SIZE, include_tasks=TASKS)
app = build_app(Tasks(TASKS, sandbox="require", num_scoring_workers=2), str(LEVELS), GROUP_SIZE)


def main() -> None:
    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
