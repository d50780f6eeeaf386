"""
Shows which modules of tests take the processor: `pytest -p tests.processor_times --heaviest 20`.

Counted is what a test computes, and what the processes did that it started and waited for. So
what serves many tests counts for the last of them, and what nobody waits for is missing.
Processes of `tests.warm` belong to another parent, which notes what they took.
"""

import resource
from collections import defaultdict
from collections.abc import Generator

import pytest

from tests.warm import noted_times

_PROPERTY = "processor"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--heaviest", type=int, default=30, help="how many modules to show")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Times(config.getoption("--heaviest")))


class _Times:
    """Processor time of each module up to now."""

    def __init__(self, heaviest: int) -> None:
        self._heaviest = heaviest
        self._until = _used()
        self._modules: dict[str, float] = defaultdict(float)

    # -- where the tests run

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = _used()
        report.user_properties.append((_PROPERTY, max(now - self._until, 0.0)))
        self._until = now
        return report

    # -- where they are reported

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        module = report.nodeid.partition("::")[0]
        self._modules[module] += sum(
            float(str(value)) for name, value in report.user_properties if name == _PROPERTY
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, seconds in noted_times():
            self._modules[test.partition("::")[0]] += seconds
        terminalreporter.section("processor time")
        heaviest = sorted(self._modules.items(), key=lambda one: one[1], reverse=True)
        for module, seconds in heaviest[: self._heaviest]:
            terminalreporter.write_line(f"{seconds:8.1f} s  {module or '(started elsewhere)'}")
        terminalreporter.write_line(f"{sum(self._modules.values()):8.1f} s  in all")


def _used() -> float:
    """Return the seconds of this process and of the children that it has waited for."""
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(used.ru_utime + used.ru_stime for used in map(resource.getrusage, kinds))
