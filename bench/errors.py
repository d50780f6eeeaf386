"""Errors of a benchmark; a disappointing figure is not one."""

__all__ = ["BenchError", "NotAvailable"]


class BenchError(Exception):
    """A measurement broke: a server answered wrongly, ended, or took too long."""


class NotAvailable(BenchError):
    """A subject cannot be measured here; it is left out."""
