"""Evaluate a model on held-out questions, which no training stream uses, and print confidence intervals."""

import re

from reasoning_gym_environment import HeldOut, Tasks


def model(messages):  # Call your model here. This one adds up the numbers of the question.
    numbers = re.findall(r"-?\d+", messages[-1]["content"])
    return f"<answer>{sum(map(int, numbers))}</answer>"


with Tasks("category:arithmetic", exclude_tasks="gsm_symbolic") as tasks:
    questions = HeldOut(tasks, eval_tasks="leg_counting,chain_sum,gcd", num_eval_samples_per_task=20)
    results = questions.results([model(problem.messages) for problem in questions])
    for scope in (*results.tasks, results.overall):
        print(f"{scope.name:15} {scope.exact.value:6.1%} [{scope.exact.low:.1%}, {scope.exact.high:.1%}]")
    print("the same questions elsewhere:", questions.manifest)
