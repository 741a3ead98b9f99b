"""Expectations of checks, whose failures name what was found."""


def same(found, wanted, what):
    if found != wanted:
        raise AssertionError(f"{what}: {found!r}, want {wanted!r}")


def holds(condition, what):
    if not condition:
        raise AssertionError(what)
