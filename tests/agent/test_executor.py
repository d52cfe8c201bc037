"""The agent, reached over its socket, is an executor as the controller expects one."""

import time

import pytest

from brim.agent.protocol import ForgetAttempt
from brim.testing.conformance_executor import check_executor


class AgentOverSocket:
    """A ``NodeExecutor`` whose node is a real agent."""

    def __init__(self, node):
        self.node, self.told = node, 0

    def _send(self, order):
        self.node.send(order)

    start = resize = tune = preempt = stop = _send

    def adopt(self):
        """As a controller that comes back: the agent connects again, and tells all."""
        self.node.vanish()
        self.node.listen()
        self.told = 0

    def forget(self, job, attempt):
        self.node.send(ForgetAttempt(job=job, attempt=attempt))

    def observe(self, timeout_s):
        deadline_s = time.monotonic() + timeout_s
        while len(self.node.history) == self.told and time.monotonic() < deadline_s:
            self.node.receive(max(0.0, deadline_s - time.monotonic()))
        new, self.told = self.node.history[self.told :], len(self.node.history)
        return new


@pytest.mark.slow
def test_the_agent_keeps_the_rules_of_executors(node, tmp_path):
    one = node()
    check_executor(lambda: AgentOverSocket(one), lambda command: one.capture(*command), tmp_path)
