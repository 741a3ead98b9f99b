"""Checks Dapr's Python SDK against the control plane and sidecars. usage: checks.py BIN_DIR [BLOCK]...

A block is a file in blocks/: its test cases, and `resources(folder)` for their components. By default all blocks run.
"""

import importlib
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]
import fleet as fleets  # noqa: E402  (after the path above)
import world  # noqa: E402


def main(binaries, names):
    names = names or sorted(file.stem for file in (HERE / "blocks").glob("*.py"))
    blocks = [importlib.import_module(f"blocks.{name}") for name in names]
    with fleets.Fleet(binaries) as fleet:
        world.start(fleet, blocks)
        loader = unittest.TestLoader()
        suite = unittest.TestSuite(loader.loadTestsFromModule(block) for block in blocks)
        result = unittest.TextTestRunner(verbosity=2).run(suite)
        if not result.wasSuccessful():
            fleet.keep_logs()
    failed = len(result.failures) + len(result.errors)
    print(f"{result.testsRun - failed} passed, {failed} failed")
    return 0 if result.wasSuccessful() else 1


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1], sys.argv[2:]))
