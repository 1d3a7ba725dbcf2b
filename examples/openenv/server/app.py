"""The application that OpenEnv starts: `uvicorn server.app:app`. TASKS chooses the tasks, as `--tasks` does."""

import os

import uvicorn

from reasoning_gym_environment import Tasks
from reasoning_gym_environment.integrations.openenv import build_app

tasks = Tasks(
    os.environ.get("TASKS", ""),
    complexity_mode="curriculum",
    sandbox="require",
    num_scoring_workers=2,
)
app = build_app(tasks)


def main() -> None:
    uvicorn.run(app, host="0.0.0.0", port=8000)


if __name__ == "__main__":
    main()
