"""Sends the same requests to both products and compares. Run by the script `run`."""

import argparse
import collections
import concurrent.futures
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import fleet as fleets  # noqa: E402  (after the path above)
import servers  # noqa: E402
from differential import allowed, compare, generate, product  # noqa: E402

COUNT = 1000
# Differences that may be timing: a response too slow on a busy machine, or reuse of a connection that an app has just
# closed. A difference that occurs twice is neither.
HASTE = ("no answer in", ": EOF", "connection reset by peer")
# A difference that disappears on a retry is a race in one product and not part of its contract. It is reported; more than
# this many are a failure.
# them than these are a failure.
MAX_RACES = 3
# Text of gRPC for a lost connection: the process may be about to end.
LOST = ("Socket closed", "Connection reset")


def reasons(difference):
    """The numbers of the allowances that explain a difference."""
    return [number for number, reason in enumerate(allowed.ALLOWED) if reason.covers(difference)]


class Comparison:
    """Both products, and the results so far."""

    def __init__(self, ours, dapr):
        self.sides = (ours, dapr)
        self.threads = concurrent.futures.ThreadPoolExecutor(2)
        self.needed = collections.Counter()
        self.passed = self.failed = 0
        self.crashes, self.races = [], []

    def both(self, case, key):
        seen = list(self.threads.map(lambda side: case.run(side, key), self.sides))
        return compare.compared(case.name, *seen), any(sign in text for side in seen for text in side.values() for sign in HASTE)

    def check(self, case, key):
        differences, slow = self.both(case, key)
        if differences and self.ended(case, differences):
            return
        left = [difference for difference in differences if not reasons(difference)]
        if left:
            differences, _ = self.both(case, key + "again")
            if differences and self.ended(case, differences):
                return
            if not slow and all(reasons(difference) for difference in differences):
                self.races.append(case.name)
                print(f"once    {case.name}", *left, sep="\n", flush=True)
        self.judge(case.name, differences)

    def ended(self, case, differences):
        """Restarts what a case crashed. Ours must not crash; if Dapr's does, the case is not compared."""
        lost = any(text in str(differences) for text in LOST)
        ours, dapr = (side.revive(lost) for side in self.sides)
        if ours:
            self.failed += 1
            print(f"FAILED  {case.name}: our sidecar ended: {', '.join(ours)}", flush=True)
        elif dapr:
            self.crashes.append(case.name)
            self.passed += 1
        return bool(ours or dapr)

    def judge(self, name, differences):
        """Counts a case; prints unexplained differences."""
        left = []
        for difference in differences:
            found = reasons(difference)
            self.needed.update(found)
            if not found:
                left.append(difference)
        if left:
            self.failed += 1
            print(f"FAILED  {name}", *left, sep="\n", flush=True)
        else:
            self.passed += 1

    def started(self):
        """The requests to apps at sidecar start, in any order."""
        seen = [{f"{record['app']} {number}: {field}": side.neutral(text)
                 for number, record in enumerate(sorted(side.started, key=str)) for field, text in record.items()}
                for side in self.sides]
        self.judge("start", compare.compared("start", *seen))

    def unneeded(self):
        """Unused allowances, except those needed only by random requests."""
        for number, reason in enumerate(allowed.ALLOWED):
            if number not in self.needed and "random" not in (reason.case or ""):
                self.failed += 1
                print(f"FAILED  allowed, but no longer seen: {reason}")


def undocumented():
    """Keys without a row, unused rows, and duplicate keys."""
    rows = compare.documented()
    used = {reason.key for reason in allowed.ALLOWED} | {key for key, *_ in compare.NEUTRAL}
    used |= {compare.SPELLING, compare.CRASH}
    problems = [f"no row of {compare.PAGES.name} has the key [{key}]" for key in sorted(used - set(rows))]
    problems += [f"a row of {compare.PAGES.name} does not fit its table: {row}" for row in compare.misplaced()]
    problems += [f"the row [{key}] of {compare.PAGES.name} is used by nothing" for key in sorted(set(rows) - used)]
    return problems + [f"two rows have the key [{key}]" for key in sorted(set(rows)) if rows.count(key) > 1]


def arguments():
    parser = argparse.ArgumentParser(prog="conformance/differential/run")
    parser.add_argument("ours")
    parser.add_argument("dapr")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--only", default="")
    parser.add_argument("--list", action="store_true")
    return parser.parse_args()


def main():
    options = arguments()
    chosen = [case for case in generate.everything(options.seed, options.count) if options.only in case.name]
    if options.list:
        print(*(case.name for case in chosen), sep="\n")
        return 0
    began = time.monotonic()
    again = f"--seed {options.seed} --count {options.count}"
    print(f"{len(chosen)} cases; to repeat this run: {again}", flush=True)
    with fleets.Fleet(options.ours) as own, fleets.Fleet(options.ours) as other:
        try:
            redis = servers.Redis(own)
        except servers.Missing as missing:
            print(f"without Redis: {missing}")
            redis = None
        sides = []
        try:
            for name, fleet, binaries in (("ours", own, options.ours), ("dapr", other, options.dapr)):
                sides.append(product.Product(name, fleet, binaries, redis, len(sides)))
            comparison = Comparison(*sides)
            comparison.started()
            for number, case in enumerate(chosen):
                comparison.check(case, f"k{number}")
        finally:
            for side in sides:
                side.close()
        if comparison.failed:
            own.keep_logs()
            other.keep_logs()
    if redis and not options.only:
        comparison.unneeded()
    if len(comparison.races) > MAX_RACES:
        comparison.failed += 1
        print(f"FAILED  {len(comparison.races)} cases differed once: {'; '.join(comparison.races)}")
    for problem in undocumented():
        comparison.failed += 1
        print(f"FAILED  {problem}")
    if comparison.crashes:
        print(f"Dapr's sidecar crashed [{compare.CRASH}]:", *comparison.crashes, sep="\n  ")
    print(f"{time.monotonic() - began:.0f} s, {again}")
    print(f"{comparison.passed} passed, {comparison.failed} failed")
    return 1 if comparison.failed else 0


if __name__ == "__main__":
    sys.exit(main())
