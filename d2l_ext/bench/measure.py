"""Seconds and peak memory of a method; no framework needed."""

import contextlib
import ctypes
import statistics
import time
from pathlib import Path

ENOUGH = 60  # seconds of one row's measured runs, after which none is added


class Method:
    """One way to decode, after prompts (batch, context) that it was given.

    A subclass writes `read`, the token (batch, 1) that follows the prompts,
    and `step`, the one that follows tokens fed since, both greedy and done
    when they return. One that runs all steps at once writes `decode`
    instead of `step`, and sets `ids`.
    """

    most_steps = None  # a method whose step is a whole pass needs few

    def __init__(self, model, prompts, steps):
        self.model, self.prompts = model, prompts
        self.context = prompts.shape[1]
        self.steps = min(steps, self.most_steps or steps)
        self.ids = []  # new tokens of the first prompt, from the last run

    def read(self):
        raise NotImplementedError

    def step(self, token, i):
        """token: (batch, 1), the one at position context + i."""
        raise NotImplementedError

    def prefill(self):
        """Seconds to read the prompts into a new cache."""
        start = time.perf_counter()
        self.first = self.read()
        return time.perf_counter() - start

    def decode(self, steps):
        """Seconds per step, for that many after the prompts."""
        tokens = [self.first]
        start = time.perf_counter()
        for i in range(steps):
            tokens.append(self.step(tokens[-1], i))
        seconds = (time.perf_counter() - start) / steps
        self.ids = [int(token[0, 0]) for token in tokens]
        return seconds

    def run(self):
        """Seconds to read the prompts, and seconds per step."""
        return self.prefill(), self.decode(self.steps)


def measure(method, repeats, before=lambda: None, enough=ENOUGH):
    """Medians over `repeats` runs, after one that warms up.

    before(): called after the warm-up, which compiles and touches memory.
    Stops early once the runs took `enough` seconds together.
    """
    method.run()
    before()
    runs, start = [], time.perf_counter()
    while len(runs) < repeats and (
            not runs or time.perf_counter() - start < enough):
        runs.append(method.run())
    prefill, step = map(statistics.median, zip(*runs, strict=True))
    return dict(prefill_s=prefill, step_s=step, repeats=len(runs),
                steps=method.steps, ids=method.ids)


def forget_peak():
    """Let the peak memory of this process start from what it holds now.

    Only Linux can. Elsewhere a peak is that of all contexts so far, which
    is why they ascend.
    """
    with contextlib.suppress(OSError, AttributeError):
        # what was freed, by loading weights twice their size, goes back
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError):
        Path('/proc/self/clear_refs').write_text('5')
