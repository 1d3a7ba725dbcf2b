"""Process several problems at the same time with asyncio."""

import asyncio

from reasoning_gym_environment import ItemStream, Tasks


async def main(tasks, stream):
    async def one_group(number):
        problem = await asyncio.to_thread(stream.next)
        completions = ["<answer>4</answer>"] * 4  # Your server's completions go here.
        grades = await asyncio.to_thread(tasks.grade, problem, completions)
        stream.observe(problem, [grade.reward for grade in grades])
        print(problem.index, problem.task, grades[0].reward)

    await asyncio.gather(*map(one_group, range(8)))


with Tasks("chain_sum,leg_counting", complexity_mode="curriculum", num_scoring_workers=2) as tasks:
    asyncio.run(main(tasks, ItemStream(tasks)))
