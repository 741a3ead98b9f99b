"""The journal of workers under faults, and its invariants. In an instance of `order` in `faults_worker.py`, steps 1 and 2 run
in sequence, then 3, 4 and 5 concurrently."""

import collections
import time
from typing import NamedTuple

STEPS = range(1, 6)
# Time for placement to publish new hosts, for moved activities to end, and for a line to be written after work was
# assigned.
LATE = 12


class Line(NamedTuple):
    at: float
    # The name of a sidecar and the number of its worker.
    worker: str
    what: str
    key: str
    # The lease: a repeated turn starts another execution.
    execution: str


class Journal:
    """A file to which workers append a line for each start and end of an activity."""

    def __init__(self, path):
        self.path = path
        path.touch()
        self.read, self.rest, self.lines = 0, "", []
        self.ended = set()
        # Intervals in which something was down.
        self.breaks = []

    def update(self):
        """Reads new lines."""
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

    def broken(self):
        """Begins an outage; the returned function ends it."""
        begun = time.time()
        self.breaks.append((begun, float("inf")))
        number = len(self.breaks) - 1

        def mended():
            self.breaks[number] = (begun, time.time())
        return mended

    def check(self, ids, taken):
        """The number of repeated activities; `taken` are the executions, by activity, whose results are in the histories. All
        have ended, and one is repeated only during an outage. An execution whose result was taken does not start after the next
        step, which depends on it, unless there was an outage: its activity moved."""
        self.update()
        expected = {f"{id}/{step}" for id in ids for step in STEPS}
        if missing := expected - self.ended:
            raise AssertionError(f"activities without an end: {sorted(missing)[:5]}")
        by_key = collections.defaultdict(list)
        for line in sorted(line for line in self.lines if line.what == "begin"):
            by_key[line.key].append(line)
        for key, begins in by_key.items():
            for first, second in zip(begins, begins[1:]):
                if not self.had(first.at - LATE, second.at):
                    raise AssertionError(f"{key} was repeated without an outage: {begins}, {self.breaks}")
        for id in ids:
            self._check_order([[line for line in by_key[key] if line.execution == taken[key]]
                               for key in (f"{id}/{step}" for step in STEPS)])
        return sum(map(len, by_key.values())) - len(expected)

    def had(self, first, second):
        """Whether there was an outage between two times."""
        return any(begun < second and first < ended for begun, ended in self.breaks)

    def _check_order(self, steps):
        for before, after in ((0, 1), (1, 2), (1, 3), (1, 4)):
            for late in steps[before][1:]:
                if late.at > steps[after][0].at and not self.had(late.at - LATE, late.at):
                    raise AssertionError(f"started after its result was taken: {late}; {steps[after][0]}, {self.breaks}")
