"""Conversion of asynchronous methods to synchronous ones."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar

from holdfast.front.sync.loop_thread import LoopThread

__all__ = ["Twin", "sides", "twin", "twin_of_plain"]

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


class Twin(Generic[A_co]):
    """The synchronous counterpart of an asynchronous object, including subclasses."""

    def __init__(self, other: A_co, thread: LoopThread) -> None:
        self._other = other
        self._thread = thread


def twin(
    method: Callable[Concatenate[A, P], Coroutine[object, object, R]],
) -> Callable[Concatenate[Twin[A], P], R]:
    """Return a synchronous version of a coroutine method."""

    @wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        # Looked up by name, so that an override in a subclass is called.
        own: Callable[P, Coroutine[object, object, R]] = getattr(self._other, method.__name__)
        return self._thread.call(lambda: own(*args, **kwargs))

    return call


def twin_of_plain(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Twin[A], P], R]:
    """Return a version of a plain method that runs in the event loop, where it may start tasks."""

    @wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        # A coroutine, because only the loop's thread may use its objects.
        async def done() -> R:
            return method(self._other, *args, **kwargs)

        return self._thread.call(done)

    return call


def sides(twin: Twin[A]) -> tuple[A, LoopThread]:
    """Return the asynchronous object and the thread of its event loop."""
    return twin._other, twin._thread  # noqa: SLF001 - what stands on a twin shares its loop
