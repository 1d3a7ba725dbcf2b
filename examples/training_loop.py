"""A training loop of your own: the curriculum chooses levels that suit the model, and the sampler gets the rewards."""

from reasoning_gym_environment import ItemStream, Tasks


def model(messages):  # Call your model here.
    return "<think>Four legs each.</think> <answer>4</answer>"


with Tasks("chain_sum,leg_counting", complexity_mode="curriculum") as tasks:
    stream = ItemStream(tasks, seed=1)
    for _ in range(6):
        problem = stream.next()
        rewards = [grade.reward for grade in tasks.grade(problem, [model(problem.messages) for _ in range(8)])]
        # Train your model here. A reward is None if the completion could not be scored.
        stream.observe(problem, rewards)
        print(problem.index, problem.task, f"level {problem.level}", rewards)
    saved = stream.state_dict()  # Give it to stream.load_state_dict in the next run.
