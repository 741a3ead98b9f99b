"""The differences that are on purpose. Each names its row of known-differences.md."""

from differential.compare import Allowed

ALLOWED = ()
