"""Runs cases of Dapr's integration suite against a folder of binaries and reports each result."""

import collections
import fcntl
import os
import pathlib
import pwd
import re
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
BINARIES = ("daprd", "sentry", "placement", "scheduler", "operator", "injector")
VERSIONS = {"1.18": "suite", "1.17": "suite-1.17"}
VERDICT = re.compile(r"^\s*--- (PASS|FAIL|SKIP): Test/(\S+) \(")
SWITCH = re.compile(r"^=== (?:RUN|NAME|CONT|PAUSE)\s+Test/(\S+)$")
# Cases of an area that share a process: enough that some run while others wait, and few enough that a panic affects few.
BATCH = 80
# Dapr refuses to run as root when the suite simulates Kubernetes, so as root the suite runs as this user.
UNPRIVILEGED = "nobody"


def cache():
    """The folder that holds the suite, the reference binaries and the Go module cache."""
    printed = subprocess.run([HERE / "cache"], check=True, capture_output=True, text=True)
    return pathlib.Path(printed.stdout.strip())


def need_binaries(folder, *names):
    """Ends the script where its folder of binaries lacks some."""
    if missing := [name for name in names if not (pathlib.Path(folder) / name).is_file()]:
        sys.exit(f"{sys.argv[0]}: {folder} lacks {', '.join(missing)}: build the binaries first, or name the folder that has them")


def names(file):
    """The case names in a list file; without blank lines and # comments."""
    lines = (HERE / file).read_text().splitlines()
    return [name for line in lines if (name := line.partition("#")[0].strip())]


def cases(version):
    """The cases that a complete runtime passes in the suite of a version."""
    if version == "1.18":
        return names("cases.txt")
    superseded = set(names("superseded.txt"))
    return [case for case in names(f"v{version}/passing.txt") if case not in superseded]


def area(case):
    """The area of a case."""
    return "/".join(case.split("/")[: 3 if case.startswith("daprd/") else 1])


class Suite:
    """One run: its binaries, its folder of logs, and the result of each case."""

    def __init__(self, binaries, out=None, parallel=2, version="1.18"):
        subprocess.run([HERE / "build", VERSIONS[version]], check=True)
        self.out = pathlib.Path(out or tempfile.mkdtemp(prefix="conformance-")).resolve()
        self.parallel = parallel
        self.verdicts = {}
        # The suite allocates ports from 1025 up, so two concurrent runs would collide.
        self.turn = open(cache() / "turn", "w")
        try:
            fcntl.flock(self.turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another run of the suite to end", file=sys.stderr, flush=True)
            fcntl.flock(self.turn, fcntl.LOCK_EX)
        # Readable by the other user even if the checkout and the cache are not.
        self.stage = pathlib.Path(tempfile.mkdtemp(prefix="conformance-stage-"))
        self.stage.chmod(0o755)
        self.scratch = self.stage / "tmp"
        self.scratch.mkdir(mode=0o777)
        self.scratch.chmod(0o777)
        self.command = [self._staged(cache() / f"bin/suite-{version}")]
        self.env = dict(os.environ, TMPDIR=str(self.scratch), HOME=str(self.scratch))
        for missing in ("HELMTEMPLATE", "MCPSTDIOSERVER"):
            self.env[f"DAPR_INTEGRATION_{missing}_PATH"] = "/bin/false"
        for name in BINARIES:
            path = pathlib.Path(binaries).resolve() / name
            self.env[f"DAPR_INTEGRATION_{name.upper()}_PATH"] = str(self._staged(path) if path.exists() else path)

    def _staged(self, path):
        if os.geteuid() != 0:
            return path
        copy = self.stage / path.name
        shutil.copy(path, copy)
        copy.chmod(0o755)
        return copy

    def close(self):
        """Removes the staged binaries and leftovers of the cases; keeps the logs."""
        shutil.rmtree(self.stage, ignore_errors=True)
        self.turn.close()

    def run(self, cases):
        """Runs the cases batch by batch; a case lost to another one's panic is rerun alone."""
        areas = collections.defaultdict(list)
        for case in cases:
            areas[area(case)].append(case)
        batches = [[]]
        for _, members in sorted(areas.items()):
            if len(batches[-1]) + len(members) > BATCH and batches[-1]:
                batches.append([])
            batches[-1] += members
        for number, members in enumerate(batches, 1):
            if sys.stderr.isatty():
                print(f"\r{number}/{len(batches)} {area(members[0]):50.50s}", end="", file=sys.stderr, flush=True)
            for lost in self._process(members):
                if self._process([lost]):
                    self.verdicts[lost] = "FAIL"
        if sys.stderr.isatty():
            print(f"\r{'':70s}\r", end="", file=sys.stderr)

    def _process(self, cases):
        """Runs the cases in one process of the suite and returns those without a result."""
        pattern = "^(" + "|".join(map(re.escape, cases)) + ")$"
        options = {}
        if os.geteuid() == 0:
            account = pwd.getpwnam(UNPRIVILEGED)
            options = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        process = subprocess.Popen(
            [*self.command, "-test.v", "-test.timeout=30m", f"-test.parallel={self.parallel}", "-focus", pattern],
            cwd=self.scratch, env=self.env, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", **options)
        ended, output, current = {}, collections.defaultdict(list), cases[0]
        wanted = set(cases)
        for line in process.stdout:
            if match := VERDICT.match(line):
                if match[2] in wanted:
                    ended[match[2]] = match[1]
                current = owner(match[2], wanted) or current
            elif match := SWITCH.match(line):
                current = owner(match[1], wanted) or current
            output[current].append(line)
        process.wait()
        for case in cases:
            if case in ended or len(cases) == 1:
                log = self.log(case)
                log.parent.mkdir(parents=True, exist_ok=True)
                log.write_text("".join(output[case]))
        self.verdicts.update(ended)
        return [case for case in cases if case not in ended]

    def log(self, case):
        """The log file of a case and its processes."""
        return self.out / f"{case}.log"

    def failed(self):
        """The cases that did not pass and were not skipped, sorted."""
        return sorted(case for case, verdict in self.verdicts.items() if verdict == "FAIL")

    def report(self):
        """Prints a line per area, the failing cases with their logs, and the total."""
        areas = collections.defaultdict(collections.Counter)
        for case, verdict in self.verdicts.items():
            areas["/".join(case.split("/")[:2])][verdict] += 1
        for name, counts in sorted(areas.items()):
            print(f"{name:36s} {counts['PASS']:4d} passed {counts['FAIL']:4d} failed {counts['SKIP']:4d} skipped")
        for case in self.failed():
            print(f"failed: {case}  ({self.log(case)})")
        total = collections.Counter(self.verdicts.values())
        print(f"{total['PASS']} passed, {total['FAIL']} failed, {total['SKIP']} skipped", flush=True)


def owner(test, cases):
    """The case of a test or sub-test."""
    while test and test not in cases:
        test = test.rpartition("/")[0]
    return test
