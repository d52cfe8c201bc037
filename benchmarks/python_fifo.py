"""A strict FIFO queue in plain Python with brim's placement: the faster peer of replay_speed.

A heap of departures, the arrivals in order of submission, a deque of waiting jobs, and the nodes in one bucket for each
number of free GPUs. A bucket is an integer with one bit per node, so its first node is its lowest bit.
The gang goes where ``simpy_fifo`` puts it: to the node it fits best, else to the fewest nodes, largest first, the last
piece where it fits best.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush


class Cluster:
    def __init__(self, nodes: int, gpus: int) -> None:
        self.gpus_per_node = gpus
        self.free = [gpus] * nodes
        self.free_total = nodes * gpus
        self.buckets = [0] * gpus + [(1 << nodes) - 1]

    def place(self, gpus: int) -> list[tuple[int, int]]:
        """Take (node, count) pairs for a gang of at most ``free_total`` GPUs."""
        self.free_total -= gpus
        chosen = []
        while gpus:
            free = gpus  # the least that holds all the rest
            while free <= self.gpus_per_node and not self.buckets[free]:
                free += 1
            if free > self.gpus_per_node:  # no node does: the largest
                free = self.gpus_per_node
                while not self.buckets[free]:
                    free -= 1
            bucket = self.buckets[free]
            node = (bucket & -bucket).bit_length() - 1
            count = min(free, gpus)
            self._move(node, free - count)
            chosen.append((node, count))
            gpus -= count
        return chosen

    def give(self, chosen: list[tuple[int, int]]) -> None:
        for node, count in chosen:
            self._move(node, self.free[node] + count)
            self.free_total += count

    def _move(self, node: int, free: int) -> None:
        bit = 1 << node
        self.buckets[self.free[node]] ^= bit
        self.buckets[free] ^= bit
        self.free[node] = free


def simulate(submit: list[int], gpus: list[int], run: list[int], nodes: int, gpus_per_node: int) -> list[int]:
    """Return the finish time of every job; all times are integers in one unit."""
    cluster = Cluster(nodes, gpus_per_node)
    departures: list[tuple[int, int, list[tuple[int, int]]]] = []
    queue: deque[int] = deque()
    finish = [0] * len(submit)
    arrived = 0
    while arrived < len(submit) or departures:
        now = departures[0][0] if departures else submit[arrived]
        if arrived < len(submit):
            now = min(now, submit[arrived])
        while departures and departures[0][0] == now:
            cluster.give(heappop(departures)[2])
        while arrived < len(submit) and submit[arrived] == now:
            queue.append(arrived)
            arrived += 1
        while queue and gpus[queue[0]] <= cluster.free_total:
            job = queue.popleft()
            finish[job] = now + run[job]
            heappush(departures, (finish[job], job, cluster.place(gpus[job])))
    return finish
