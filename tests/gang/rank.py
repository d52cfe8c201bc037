"""A rank without torch: speaks the protocol, and "trains" by meeting the others at the leader's socket in each step.

python rank.py [steps=N] [pause=S] [sizes=1,2,4] [ignore] [hang=ID:STEP] [fail=ID:STEP] [linger=S] [segv=ID:STEP]
               [build=FILE] [mute] [deaf]

It builds as long as the file is there.
"""

import contextlib
import os
import select
import signal
import socket
import sys
import time

from brim.gang.codec import Decoder, encode
from brim.gang.messages import (
    FormGroup,
    GroupBroken,
    GroupFormed,
    Hello,
    Leaving,
    MemberLost,
    Prepare,
    Ready,
    ResizeGroup,
    Saved,
    Stop,
    StoreAddress,
    TrainingProgress,
    Waiting,
)

ME = int(os.environ["BRIM_ID"])
OPTIONS = dict(word.partition("=")[::2] for word in sys.argv[1:])
STEPS = int(OPTIONS.get("steps", "100000"))
PAUSE_S = float(OPTIONS.get("pause", "0.005"))


def at(name, step):
    """Whether this rank is to do something now."""
    who, _, when = OPTIONS.get(name, "").partition(":")
    return bool(who) and int(who) == ME and int(when) <= step


class BrokeError(Exception):
    """A member of the group is gone."""


class Rank:
    def __init__(self):
        self.control = socket.socket(socket.AF_UNIX)
        self.control.connect(os.environ["BRIM_CONTROL"])
        self.decoder = Decoder()
        self.order = None  # newest form or resize
        self.addresses = {}
        self.prepare = self.stop = None
        self.lost = 0  # newest generation that has lost a member
        self.generation, self.members, self.step = 0, (), 0
        self.peers, self.server = {}, None

    def send(self, message):
        self.control.sendall(encode(message))

    def listen(self, timeout_s=0.0):
        while select.select([self.control], [], [], timeout_s)[0]:
            data = self.control.recv(65536)
            if not data:
                sys.exit(9)
            for message in self.decoder.feed(data):
                if isinstance(message, (FormGroup, ResizeGroup)) and message.generation > max(
                    self.generation, self.order.generation if self.order else 0
                ):
                    self.order = message
                elif isinstance(message, MemberLost):
                    self.lost = message.generation
                elif isinstance(message, StoreAddress):
                    self.addresses[message.generation] = message
                elif isinstance(message, Prepare):
                    self.prepare = message
                elif isinstance(message, Stop):
                    self.stop = message
            timeout_s = 0.0

    def close_group(self):
        for peer in self.peers.values():
            peer.close()
        self.peers = {}
        if self.server:
            self.server.close()
            self.server = None

    def leave(self, code=0):
        command = self.prepare.command if self.prepare else 0
        if self.prepare:
            self.send(Saved(command, self.step, "nowhere"))
        self.send(Leaving(command, self.step))
        sys.exit(code)

    def join(self):
        """Form the generation that was ordered, or a newer one that comes meanwhile; True if in."""
        self.close_group()
        start_s = time.monotonic()
        order, self.order = self.order, None
        if ME not in order.members:
            self.leave()
        self.generation, self.members = order.generation, order.members
        newer = lambda: self.order is not None or self.prepare is not None  # noqa: E731
        if order.leader == ME:
            self.server = socket.create_server(("127.0.0.1", 0))
            self.send(StoreAddress(self.generation, "127.0.0.1", self.server.getsockname()[1]))
            while len(self.peers) < len(self.members) - 1:
                ready, _, _ = select.select([self.server, self.control], [], [], 1)
                if self.server in ready:
                    peer, _ = self.server.accept()
                    peer.settimeout(20)
                    self.peers[int.from_bytes(peer.recv(4), "big")] = peer
                self.listen()
                if newer():
                    return False
        else:
            while self.generation not in self.addresses:
                self.listen(0.5)
                if newer():
                    return False
            address = self.addresses[self.generation]
            try:
                peer = socket.create_connection((address.host, address.port))
                peer.settimeout(20)
                peer.sendall(ME.to_bytes(4, "big"))
            except OSError:  # the leader was killed meanwhile
                raise BrokeError from None
            self.peers[order.leader] = peer
        self.step = self.meet(self.step)[0]
        self.send(GroupFormed(self.generation, self.step, time.monotonic() - start_s))
        return True

    def meet(self, step):
        """Highest step, lowest newest generation and lowest "is to stop" of all: one exchange with the leader."""
        received = self.order.generation if isinstance(self.order, ResizeGroup) else self.generation
        stop = int(self.prepare is not None or self.stop is not None)
        mine = b"".join(value.to_bytes(4, "big") for value in (step, received, stop))
        try:
            if self.server is not None:
                all_of_them = [mine, *(self.read(peer) for peer in self.peers.values())]
                words = [[int.from_bytes(one[i : i + 4], "big") for one in all_of_them] for i in (0, 4, 8)]
                result = (max(words[0]), min(words[1]), min(words[2]))
                for peer in self.peers.values():
                    peer.sendall(b"".join(value.to_bytes(4, "big") for value in result))
                return result
            if not self.peers:
                return step, received, stop
            (leader,) = self.peers.values()
            leader.sendall(mine)
            answer = self.read(leader)
            return tuple(int.from_bytes(answer[i : i + 4], "big") for i in (0, 4, 8))
        except OSError:
            raise BrokeError from None

    def read(self, peer):
        data = b""
        start_s = time.monotonic()
        while len(data) < 12:
            if not select.select([peer], [], [], 0.2)[0]:
                waited_s = time.monotonic() - start_s
                if "mute" not in OPTIONS:
                    self.send(Waiting(self.generation, self.step, waited_s))
                elif waited_s > 0.5:
                    raise BrokeError  # a collective with a time-out
                continue
            piece = peer.recv(12 - len(data))
            if not piece:
                raise BrokeError
            data += piece
        return data

    def run(self):
        self.send(Hello(ME, os.getpid()))
        while os.path.exists(OPTIONS.get("build", "")):
            time.sleep(0.01)
        sizes = OPTIONS.get("sizes", "")
        self.send(Ready(ME, tuple(int(size) for size in sizes.split(",") if size)))
        training = False
        while self.step < STEPS:
            try:
                self.listen()
                if not training:
                    if self.prepare:
                        self.leave()
                    if self.order is None:
                        self.listen(0.5)
                    else:
                        training = self.join()
                    continue
                if isinstance(self.order, FormGroup):
                    training = False  # at once
                    continue
                if at("hang", self.step):
                    while True:
                        time.sleep(60)
                if at("fail", self.step):
                    if "linger" in OPTIONS:  # else the others learn of it by its exit, which is after its exception
                        self.close_group()
                        time.sleep(float(OPTIONS["linger"]))
                    raise ValueError(f"the user's own mistake in {ME}")
                if at("segv", self.step):
                    os.kill(os.getpid(), signal.SIGSEGV)
                time.sleep(PAUSE_S)
                _, received, stop = self.meet(self.step)
                self.step += 1
                self.send(TrainingProgress(self.step, self.step * 8, 1.0))
                if stop and "ignore" not in OPTIONS:
                    self.leave(int(OPTIONS.get("code", "0")))
                if isinstance(self.order, ResizeGroup) and received >= self.order.generation:
                    training = False
            except BrokeError:
                if "brittle" in OPTIONS:
                    raise RuntimeError(f"{ME} lost its peers") from None
                while "deaf" in OPTIONS and self.lost < self.generation:  # as NCCL is to the end of a peer
                    self.listen(0.5)
                self.close_group()
                training = False
                self.send(GroupBroken(self.generation, self.step, "a peer is gone"))
        self.close_group()
        sys.stdout.write(f"rank {ME} done at {self.step} in generation {self.generation} of {len(self.members)}\n")


if __name__ == "__main__":
    if "ignore" in OPTIONS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with contextlib.suppress(BrokenPipeError):
        Rank().run()
