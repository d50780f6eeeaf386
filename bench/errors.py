"""Errors of a benchmark, apart from a disappointing figure."""

__all__ = ["BenchError", "NotAvailable"]


class BenchError(Exception):
    """A measurement broke: a server answered wrongly, ended, or took too long."""


class NotAvailable(BenchError):
    """A subject cannot be measured here, which is no fault: it is left out."""
