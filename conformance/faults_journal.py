"""What workers write while things break, and what has to hold of it. Of an instance of `order` in `faults_worker.py` steps
1 and 2 come one after the other, then 3, 4 and 5 at once.
"""

import collections
import time
from typing import NamedTuple

STEPS = range(1, 6)
# Placement has to tell who hosts what from now on, what moves has to end, and a line is written after the work was given.
LATE = 12
# How long a worker goes on with what a sidecar gave it that is gone.
LEFTOVER = 60


class Line(NamedTuple):
    at: float
    # The name of a sidecar, and which of the workers that it has had.
    worker: str
    what: str
    key: str
    # The lease: a turn that is done again begins another execution.
    execution: str


class Journal:
    """A file to which workers append a line for each begin and each end of an activity."""

    def __init__(self, path):
        self.path = path
        path.touch()
        self.read, self.rest, self.lines = 0, "", []
        self.ended = set()
        # What was away: from when until when, and which; None where it concerns all.
        self.breaks = []

    def update(self):
        """Reads what is new."""
        with open(self.path) as file:
            file.seek(self.read)
            text = self.rest + file.read()
            self.read = file.tell()
        *whole, self.rest = text.split("\n")
        for text in whole:
            at, worker, what, key, execution = text.split(" ")
            self.lines.append(Line(float(at), worker, what, key, execution))
            if what == "end":
                self.ended.add(key)
        return self

    def broken(self, what=None):
        """Something breaks, until the function that comes back is called: the name of a sidecar, `NAME.NUMBER` for a worker
        of it, or nothing where it may concern all."""
        begun = time.time()
        self.breaks.append((begun, float("inf"), what))
        number = len(self.breaks) - 1

        def mended():
            self.breaks[number] = (begun, time.time(), what)
        return mended

    def had(self, first, second, of=lambda what: True):
        """Whether something was away between two times of which `of` is true."""
        return any(begun < second and first < ended and of(what) for begun, ended, what in self.breaks)

    def check(self, ids):
        """How many activities were begun again. All have ended; one execution is begun a second time only if its worker, or
        the sidecar of that, was away; another execution of the same activity only if something was; and none is begun when
        a later step is, which needs its result, but by a worker that had it from a sidecar that is gone."""
        self.update()
        expected = {f"{id}/{step}" for id in ids for step in STEPS}
        if missing := expected - self.ended:
            raise AssertionError(f"activities that never ended: {sorted(missing)[:5]}")
        by_key = collections.defaultdict(list)
        for line in sorted(line for line in self.lines if line.what == "begin"):
            by_key[line.key].append(line)
        for key, begins in by_key.items():
            for first, second in zip(begins, begins[1:]):
                if not self.had(first.at - LATE, second.at):
                    raise AssertionError(f"{key} was begun again although nothing was away: {begins}, {self.breaks}")
            self._check_leases(begins)
        for id in ids:
            self._check_order([by_key[f"{id}/{step}"] for step in STEPS])
        return sum(map(len, by_key.values())) - len(expected)

    def _check_leases(self, begins):
        by_execution = collections.defaultdict(list)
        for line in begins:
            by_execution[line.execution].append(line)
        for leases in by_execution.values():
            for first, second in zip(leases, leases[1:]):
                holders = (None, first.worker, first.worker.partition(".")[0])
                if not self.had(first.at - LATE, second.at, lambda what: what in holders):
                    raise AssertionError(f"one execution was begun twice although its worker and the sidecar of that "
                                         f"were there: {first}, {second}, {self.breaks}")

    def _check_order(self, steps):
        for before, after in ((0, 1), (1, 2), (1, 3), (1, 4)):
            taken = steps[after][0].at
            for late in steps[before]:
                sidecar = late.worker.partition(".")[0]
                if late.at > taken and not self.had(late.at - LEFTOVER, late.at, lambda what: what in (None, sidecar)):
                    raise AssertionError(f"begun although its result was taken at {taken}: {late}, {self.breaks}")
