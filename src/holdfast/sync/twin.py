"""Makes the synchronous method from the asynchronous one."""

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar

from holdfast.sync.loop_thread import LoopThread

__all__ = ["Twin", "sides", "twin", "twin_of_plain"]

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


class Twin(Generic[A_co]):
    """The synchronous side of an asynchronous object; also a twin of its base classes."""

    def __init__(self, other: A_co, thread: LoopThread) -> None:
        self._other = other
        self._thread = thread


def twin(
    method: Callable[Concatenate[A, P], Coroutine[object, object, R]],
) -> Callable[Concatenate[Twin[A], P], R]:
    """Return the same method, waited for."""

    @wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        # Of its class, not of the base.
        own: Callable[P, Coroutine[object, object, R]] = getattr(self._other, method.__name__)
        return self._thread.call(lambda: own(*args, **kwargs))

    return call


def twin_of_plain(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Twin[A], P], R]:
    """Return the same method, run in the event loop: it may start tasks there."""

    @wraps(method)
    def call(self: Twin[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        async def done() -> R:
            return method(self._other, *args, **kwargs)

        return self._thread.call(done)

    return call


def sides(twin: Twin[A]) -> tuple[A, LoopThread]:
    """Return the asynchronous object of a twin, and where it may be used."""
    return twin._other, twin._thread  # noqa: SLF001 - what stands on a twin shares its loop
