"""Finds the number of worker processes by measurement, for ``workers="auto"``.

The search tries increasing numbers as long as more workers raise the rate of samples and training still waits for data.
It then measures the best few again in turns, because the speed of a shared machine drifts, and keeps the smallest of
those that are equally good. It starts over when the rate has changed permanently.
"""

from __future__ import annotations

from statistics import median

TRIED = (1, 0, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
"""Numbers in the order they are tried. The rate is concave in the number, so skipping some loses little."""

WINDOW_S, WINDOW_FETCHES = 0.4, 12
"""Shortest measurement of one number: seconds, and micro-batches. Our choice."""

NO_WAIT = 0.01
"""Fraction of time spent waiting below which more workers cannot help."""

GAIN = 1.03
"""Ratio of rates from which a larger number counts as better; above the noise of one measurement. Our choice."""

CLOSE = 0.80
"""Numbers that reach this fraction of the best rate are measured again."""

ROUNDS = 3
"""How often they are measured again."""

FEW = 4
"""Most numbers that are measured again."""

SAME = 0.98
"""Fraction of the best rate from which a smaller number counts as equally good."""

DRIFT, DRIFT_WINDOWS = 0.25, 8
"""The search starts over after the rate has differed by this fraction in so many measurements in a row. Our choice."""


class WorkerTuner:
    """The search for the best number of workers, from measurements of each fetch.

    Attributes:
        workers: The number to use now.
        settled: Whether the search has ended; the rate is still watched.
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
        """Record one fetch; return whether ``workers`` has changed.

        Args:
            now_s: Current time of any monotonic clock.
            wait_s: Time waited for this micro-batch.
            samples: Samples in this micro-batch.
            ahead: Number of prefetched micro-batches. After a change of ``workers``, as many fetches are not counted,
                because they were loaded by the former number.
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

    def limit(self, most: int, *, ahead: int) -> None:
        """Try no more than ``most`` from now on; what was found stays if it may, and would not have been more.

        ``ahead`` micro-batches, which are prefetched now, are then not counted.
        """
        before, self._numbers = self._numbers, [number for number in TRIED if number <= most]
        stays = self.settled and self.workers in self._numbers and (
            len(self._numbers) <= len(before) or self.workers < max(before)
        )
        if self._numbers != before and not stays:
            self._begin_again()
            self._clear(self._since_s)
            self._skip = ahead + 2

    def _begin_again(self) -> None:
        self.workers, self.settled, self._confirming, self._drifted = self._numbers[0], False, False, 0
        self._rates.clear()
        self._again.clear()

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
        """Return whether the two largest numbers tried were no better than a smaller one."""
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
