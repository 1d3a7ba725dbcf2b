"""Grade completions for items of reasoning-gym in a sandbox, so that no code of a completion runs in this process."""

import reasoning_gym

from reasoning_gym_environment import grade

for item in reasoning_gym.create_dataset("leg_counting", seed=1, size=2):
    for answer in (item["answer"], "about 40", "__import__('os').system('touch hacked')"):
        made = grade("leg_counting", item, f"<think>Let me count.</think> <answer>{answer}</answer>")
        print(f"{made.reward}  {made.score.outcome.value}  {answer}")
