"""A straightforward SimPy model of a strict FIFO queue with brim's placement: the peer of replay_speed.

It is written as a SimPy user would write it: a source process, one process per job, a scheduler process woken by
arrivals and departures, plain lists. A gang goes to the node it fits best, else to the fewest nodes, largest first, the
last piece where it fits best.
"""

from __future__ import annotations

from collections import deque

import simpy


class Cluster:
    def __init__(self, nodes: int, gpus: int) -> None:
        self.free = [gpus] * nodes
        self.free_total = nodes * gpus

    def place(self, gpus: int) -> list[tuple[int, int]] | None:
        """Choose (node, count) pairs, or None if the gang does not fit now."""
        if gpus > self.free_total:
            return None
        best = -1
        for node, free in enumerate(self.free):
            if free >= gpus and (best < 0 or free < self.free[best]):
                best = node
                if free == gpus:
                    break
        if best >= 0:
            return self._take([(best, gpus)])
        chosen: list[tuple[int, int]] = []
        used: set[int] = set()
        left = gpus
        while left:
            best = -1
            for node, free in enumerate(self.free):
                if not free or node in used:
                    continue
                if best < 0:
                    best = node
                elif self.free[best] >= left:
                    if left <= free < self.free[best]:
                        best = node
                elif free > self.free[best]:
                    best = node
            count = min(self.free[best], left)
            chosen.append((best, count))
            used.add(best)
            left -= count
        return self._take(chosen)

    def _take(self, chosen: list[tuple[int, int]]) -> list[tuple[int, int]]:
        for node, count in chosen:
            self.free[node] -= count
            self.free_total -= count
        return chosen

    def give(self, chosen: list[tuple[int, int]]) -> None:
        for node, count in chosen:
            self.free[node] += count
            self.free_total += count


def simulate(submit: list[int], gpus: list[int], run: list[int], nodes: int, gpus_per_node: int) -> list[int]:
    """Return the finish time of every job; all times are integers in one unit."""
    env = simpy.Environment()
    cluster = Cluster(nodes, gpus_per_node)
    queue: deque[tuple[int, simpy.Event]] = deque()
    finish = [0] * len(submit)
    wake = env.event()

    def scheduler():
        nonlocal wake
        while True:
            yield wake
            wake = env.event()
            while queue:
                job, granted = queue[0]
                chosen = cluster.place(gpus[job])
                if chosen is None:
                    break
                queue.popleft()
                granted.succeed(chosen)

    def poke() -> None:
        if not wake.triggered:
            wake.succeed()

    def source():
        for index, submit_at in enumerate(submit):
            yield env.timeout(submit_at - env.now)
            granted = env.event()
            queue.append((index, granted))
            env.process(job(index, granted))
            poke()

    def job(index: int, granted: simpy.Event):
        chosen = yield granted
        yield env.timeout(run[index])
        cluster.give(chosen)
        finish[index] = env.now
        poke()

    env.process(scheduler())
    env.process(source())
    env.run()
    return finish
