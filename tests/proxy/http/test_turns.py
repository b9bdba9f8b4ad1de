"""Tasks that take turns: one goes on in each round of the event loop, in order."""

from __future__ import annotations

import asyncio

from knapcache.proxy.http.turns import Turns

ROUNDS = 30
"""More rounds of the event loop than the tasks of a test need."""


async def test_one_task_goes_on_in_each_round() -> None:
    turns, steps = Turns(), list[int]()

    async def work(k: int) -> None:
        for _ in range(3):
            await turns.pause()
            steps.append(k)

    for _ in range(2):  # the second time, nobody was waiting before
        steps.clear()
        tasks = [asyncio.create_task(work(k)) for k in range(3)]
        for _ in range(ROUNDS):
            before = len(steps)
            await asyncio.sleep(0)
            assert len(steps) <= before + 1
        assert steps == [0, 1, 2] * 3
        assert all(task.done() for task in tasks)


async def test_a_cancelled_task_takes_no_turn() -> None:
    turns = Turns()
    tasks = [asyncio.create_task(turns.pause()) for _ in range(4)]
    await asyncio.sleep(0)
    for k in (0, 1):
        tasks[k].cancel()
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
    assert [task.cancelled() for task in tasks] == [True, True, False, False]
    assert all(task.done() for task in tasks)
