"""
Runs tests side by side, in processes that are forked when the tests have been collected.

`pytest-xdist` has every worker import and collect all tests for itself. With thirteen thousand
of them that cost more than many of the tests, and a worker more was no gain. Here the tests are
collected once, and a worker costs a fork. Use it with `pytest -p tests.side_by_side --forks 8`.
A worker that a test ends, by its time limit or a crash, is replaced: no other test is left out.
"""

import itertools
import os
import pickle
import selectors
import struct
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from _pytest.config import create_terminal_writer
from _pytest.reports import TestReport

_CHUNK = 12
"""Tests of one module that a worker takes at a time: it makes the fixtures of a module once."""

_LENGTH = struct.Struct("!I")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--forks", type=int, default=0, help="run tests side by side, so many")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Take the place of the loop that runs one test after the other."""
    forks: int = session.config.getoption("--forks")
    if forks < 2 or session.testsfailed or session.config.option.collectonly:
        return None
    _Run(session, forks).run()
    return True


class _Run:
    """One run of all tests."""

    def __init__(self, session: pytest.Session, forks: int) -> None:
        self._session = session
        self._hook = session.config.hook
        self._chunks = list(_chunks(session.items))
        self._forks = min(forks, len(self._chunks))
        self._workers: dict[int, _Worker] = {}
        self._started = 0
        self._selector = selectors.DefaultSelector()
        # One folder for the files of all workers. Pytest removes it with a later run.
        self._folder: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        # Every worker reads the number of its next chunk from here.
        self._numbers, numbers = os.pipe()
        with open(numbers, "wb") as file:
            file.write(b"".join(map(_LENGTH.pack, range(len(self._chunks)))))

    def run(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for _ in range(self._forks):
            self._fork([])
        with self._selector as selector:
            while self._workers:
                for key, _ in selector.select():
                    worker = self._workers[key.fd]
                    data = os.read(key.fd, 1 << 20)
                    for message in worker.messages(data):
                        self._tell(worker, message)
                    if not data:
                        selector.unregister(key.fd)
                        self._end(self._workers.pop(key.fd))
        unread = os.read(self._numbers, 1 << 20)
        os.close(self._numbers)
        if unread:
            raise self._session.Failed(f"{len(unread) // _LENGTH.size} groups of tests did not run")

    def _fork(self, first: list[pytest.Item]) -> None:
        """Start a worker, which begins with some tests that another one left."""
        self._started += 1
        reports, to_parent = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reports)
                for fd in self._workers:
                    os.close(fd)
                self._work(first, to_parent)
            except BaseException:  # noqa: BLE001 - a fork must never go on as its parent
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(1)
        os.close(to_parent)
        self._workers[reports] = _Worker(pid, reports, first)
        self._selector.register(reports, selectors.EVENT_READ)

    # -- in the process of the tests' runner

    def _tell(self, worker: "_Worker", message: tuple[str, Any]) -> None:
        kind, value = message
        if kind == "take":
            worker.waiting += self._chunks[value]
        elif kind == "start":
            worker.running = value
            worker.waiting = [item for item in worker.waiting if item.nodeid != value[0]]
            self._hook.pytest_runtest_logstart(nodeid=value[0], location=value[1])
        elif kind == "finish":
            worker.running = None
            self._hook.pytest_runtest_logfinish(nodeid=value[0], location=value[1])
        else:
            report = self._hook.pytest_report_from_serializable(
                config=self._session.config, data=value
            )
            self._hook.pytest_runtest_logreport(report=report)

    def _end(self, worker: "_Worker") -> None:
        os.close(worker.fd)
        _, status = os.waitpid(worker.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if worker.running is None and code == 0:
            return
        nodeid, location = worker.running or ("tests", ("tests", None, "tests"))
        self._hook.pytest_runtest_logreport(
            report=TestReport(
                nodeid,
                location,
                keywords={},
                outcome="failed",
                longrepr=f"the process that ran it ended with {code}",
                when="call",
            )
        )
        if worker.running is not None:  # it got on by one test at least, so this has an end
            self._fork(worker.waiting)

    # -- in a worker

    def _work(self, first: list[pytest.Item], to_parent: int) -> NoReturn:
        config = self._session.config
        plugins = config.pluginmanager
        # What the tests print is captured in files, which are to be this worker's own.
        capture = plugins.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        plugins.unregister(name="terminalreporter")
        reporter = _Reporter(config, to_parent)
        plugins.register(reporter, "terminalreporter")
        folder = self._folder / f"worker{self._started}"
        folder.mkdir()
        config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
        item = None
        for following in itertools.chain(first, self._items(reporter)):
            if item is not None:
                config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following
        if item is not None:
            config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        capture.stop_global_capturing()
        os._exit(0)

    def _items(self, reporter: "_Reporter") -> Iterator[pytest.Item]:
        while data := os.read(self._numbers, _LENGTH.size):
            number: int = _LENGTH.unpack(data)[0]
            reporter.take(number)
            yield from self._chunks[number]


class _Worker:
    """A worker as the runner sees it."""

    def __init__(self, pid: int, fd: int, first: list[pytest.Item]) -> None:
        self.pid = pid
        self.fd = fd
        self.waiting = first
        """Tests that it has taken and not begun."""
        self.running: tuple[str, Any] | None = None
        """The test it is at, by its id and location."""
        self._unread = b""

    def messages(self, data: bytes) -> Iterator[tuple[str, Any]]:
        """Take bytes that it wrote, and return the messages that are whole by now."""
        self._unread += data
        while len(self._unread) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._unread)[0]
            if len(self._unread) < end:
                return
            message, self._unread = self._unread[_LENGTH.size : end], self._unread[end:]
            yield pickle.loads(message)


class _Reporter:
    """Tells the runner what happens in a worker."""

    def __init__(self, config: pytest.Config, fd: int) -> None:
        self._config = config
        self._fd = fd
        # Where `pytest-timeout` writes all stacks before it ends a worker.
        self._tw = create_terminal_writer(config, sys.__stderr__)
        self._wants_all = bool(
            config.option.durations
            or config.option.xmlpath
            or config.pluginmanager.hasplugin("tests.processor_times")
        )

    def take(self, number: int) -> None:
        """Tell that this worker will run a chunk."""
        self._send("take", number)

    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        self._send("start", (nodeid, location))

    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        self._send("finish", (nodeid, location))

    def pytest_runtest_logreport(self, report: TestReport) -> None:
        if report.passed and report.when != "call" and not self._wants_all:
            return  # nobody shows it, and two of three are such
        hook = self._config.hook
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self._send("report", data)

    def _send(self, kind: str, value: object) -> None:
        data = pickle.dumps((kind, value))
        message = memoryview(_LENGTH.pack(len(data)) + data)
        while message:
            message = message[os.write(self._fd, message) :]


def _chunks(items: list[pytest.Item]) -> Iterator[list[pytest.Item]]:
    """Divide the tests into groups of one module each, those that take long first."""
    together: dict[Path, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("together") is not None:
            together.setdefault(item.path, []).append(item)
    yield from together.values()
    yield from ([item] for item in items if item.get_closest_marker("long") is not None)
    chunk: list[pytest.Item] = []
    for item in items:
        if item.path in together or item.get_closest_marker("long") is not None:
            continue
        if chunk and (len(chunk) == _CHUNK or chunk[0].path != item.path):
            yield chunk
            chunk = []
        chunk.append(item)
    if chunk:
        yield chunk
