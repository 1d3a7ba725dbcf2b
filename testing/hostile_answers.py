"""What a reinforcement learner might find: answers that try to run, hang, read or break something.

Not a test. `<marker>` stands for a path that must never come to exist, `<port>` for one nobody may reach.
"""

from __future__ import annotations

import json
from pathlib import Path

ATTACK_MODULE = str(Path(__file__).resolve().parent / "attack_task.py")
ATTACK_TASK = "executes_answers"
"""The task of attack_task.py; it scores `RIGHT` 1.0 and what it can execute 0.25."""
RIGHT = "right"
SECRET = "sk-do-not-leak-4711"
"""In the environment of the tests' process, where no answer may find it."""
ENTRY = {"question": "?", "answer": RIGHT, "metadata": {}}

HOSTILE_ANSWERS: dict[str, str] = {
    name: text if isinstance(text, str) else "".join(part * times for part, times in text)
    for name, text in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).items()
}
"""By what they try. In the file a long one stands as a list of parts, each with how often it is repeated."""
