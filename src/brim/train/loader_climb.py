"""Finds the number of loading processes by measurement, for ``workers="auto"``.

The search tries one number after the other, upwards, as long as the rate at which training gets its samples grows or
training still waits. It measures the best few again in turns, because the speed of a shared machine drifts, and keeps
the smallest of those that are equally good. It begins again when the rate has changed permanently.
"""

from __future__ import annotations

from statistics import median

TRIED = (1, 0, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers in the order they are tried. Supply is concave in them, so between neighbours little is lost."""

WINDOW_S, WINDOW_FETCHES = 0.4, 12
"""A number is measured for at least so long and so many micro-batches; ours."""

NO_WAIT = 0.01
"""Share of time waiting below which more supply cannot help."""

GAIN = 1.03
"""What a greater number has to gain to be better, above the noise of one window; ours."""

CLOSE = 0.80
"""Numbers with this share of the best rate are measured again."""

ROUNDS = 3
"""Times the best few are measured again."""

FEW = 4
"""How many they are at most."""

SAME = 0.98
"""Share of the best rate at which a smaller number is as good."""

DRIFT, DRIFT_WINDOWS = 0.25, 8
"""Change of the rate, and windows in a row it has to last, before the search begins again; ours."""


class Climb:
    """A search over numbers of workers, fed with what each fetch saw.

    Attributes:
        workers: The number to use now.
        settled: Found; only watched.
    """

    def __init__(self, most: int) -> None:
        self._numbers = [number for number in TRIED if number <= most]
        self.workers, self.settled = self._numbers[0], False
        self._rates: dict[int, list[float]] = {}
        self._again: list[int] = []
        self._confirming = False
        self._kept_rate, self._drifted = 0.0, 0
        self._skip: int | None = None
        self._since_s, self._waited_s, self._fetches, self._samples = 0.0, 0.0, 0, 0

    def observe(self, *, now_s: float, wait_s: float, samples: int, ahead: int) -> bool:
        """Take in one fetch; tell whether ``workers`` has changed.

        Args:
            now_s: Any clock.
            wait_s: Time waited for this micro-batch.
            samples: Of this micro-batch.
            ahead: Micro-batches that are loaded ahead; those loaded under the former number are passed over.
        """
        if self._skip is None:
            self._skip = ahead + 2
        if self._skip > 0:
            self._skip -= 1
            self._since_s = now_s
            return False
        self._fetches += 1
        self._waited_s += wait_s
        self._samples += samples
        elapsed_s = now_s - self._since_s
        if elapsed_s < WINDOW_S or self._fetches < WINDOW_FETCHES:
            return False
        rate, waiting = self._samples / elapsed_s, self._waited_s / elapsed_s
        self._clear(now_s)
        before = self.workers
        if self.settled:
            self._watch(rate, waiting)
        else:
            self._rates.setdefault(before, []).append(rate)
            self._go_on(waiting)
        if self.workers != before:
            self._skip = None
        return self.workers != before

    def _begin_again(self) -> None:
        self.workers, self.settled, self._confirming, self._drifted = self._numbers[0], False, False, 0
        self._rates.clear()

    def _clear(self, now_s: float) -> None:
        self._since_s, self._fetches, self._waited_s, self._samples = now_s, 0, 0.0, 0

    def _go_on(self, waiting: float) -> None:
        if not self._confirming:
            following = self._numbers.index(self.workers) + 1
            enough = self.workers > 0 and waiting < NO_WAIT
            if following < len(self._numbers) and not enough and not self._past_the_best():
                self.workers = self._numbers[following]
                return
            self._confirming = True
            best = max(self._rate(number) for number in self._rates)
            close = [number for number in self._rates if self._rate(number) >= CLOSE * best]
            close = sorted(sorted(close, key=self._rate, reverse=True)[:FEW])
            self._again = close * ROUNDS if len(close) > 1 else []
        if self._again:
            self.workers = self._again.pop(0)
            return
        best = max(self._rate(number) for number in self._rates)
        self.workers = min(number for number in self._rates if self._rate(number) >= SAME * best)
        self._kept_rate, self.settled = self._rate(self.workers), True

    def _rate(self, number: int) -> float:
        return median(self._rates[number])

    def _past_the_best(self) -> bool:
        """Tell whether the last two numbers were no better than one before them."""
        tried = sorted(self._rates)
        if len(tried) < 4:
            return False
        before = max(self._rate(number) for number in tried[:-2])
        return all(self._rate(number) < GAIN * before for number in tried[-2:])

    def _watch(self, rate: float, waiting: float) -> None:
        changed = abs(rate / self._kept_rate - 1) > DRIFT and waiting > NO_WAIT
        self._drifted = self._drifted + 1 if changed else 0
        if self._drifted >= DRIFT_WINDOWS:
            self._begin_again()
