"""Test doubles for programs that use Holdfast, controlled by the test."""

from holdfast.testing.backend import FakeBackend, Program
from holdfast.testing.environment import FakeEnvironment
from holdfast.testing.line import FakeLine
from holdfast.testing.process import CODEX, HOLDFAST, Asked, FakeChild, FakeProcess, Termination
from holdfast.testing.scripted import ScriptedPeer, ScriptedServer
from holdfast.testing.virtual_time import VirtualTimeLoop, WaitsForEver, run_virtual

__all__ = [
    "CODEX",
    "HOLDFAST",
    "Asked",
    "FakeBackend",
    "FakeChild",
    "FakeEnvironment",
    "FakeLine",
    "FakeProcess",
    "Program",
    "ScriptedPeer",
    "ScriptedServer",
    "Termination",
    "VirtualTimeLoop",
    "WaitsForEver",
    "run_virtual",
]
