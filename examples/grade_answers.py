"""Grade completions for items of reasoning-gym in a sandbox, so that no code of a completion runs in this process."""

import reasoning_gym

from reasoning_gym_environment import grade, problem_of

for item in reasoning_gym.create_dataset("leg_counting", seed=1, size=2):
    problem = problem_of("leg_counting", item)
    answers = [item["answer"], "about 40", "__import__('os').system('touch hacked')"]
    grades = grade(problem, [f"<think>Let me count.</think> <answer>{answer}</answer>" for answer in answers])
    for answer, made in zip(answers, grades, strict=True):
        print(f"{made.reward}  {made.score.outcome.value}  {answer}")
