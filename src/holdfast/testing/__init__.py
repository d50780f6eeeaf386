"""Test doubles for programs that use Holdfast, controlled by the test."""

from holdfast.testing.fake_backend import FakeBackend, FakeEnvironment, Program
from holdfast.testing.fake_calls import CODEX, HOLDFAST, Asked, Termination
from holdfast.testing.fake_files import FakeFileSystem, FileRequest
from holdfast.testing.fake_line import FakeLine
from holdfast.testing.fake_path import FakePath
from holdfast.testing.fake_process import FakeProcess
from holdfast.testing.recorder import RecordedEnvironment, Recorder
from holdfast.testing.recording import LostProcess, Recorded, Recording
from holdfast.testing.replay import replay
from holdfast.testing.scripted import ScriptedPeer, ScriptedServer
from holdfast.testing.scripted_process import FakeChild
from holdfast.testing.virtual_time import VirtualTimeLoop, WaitsForEver, run_virtual

__all__ = [
    "CODEX",
    "HOLDFAST",
    "Asked",
    "FakeBackend",
    "FakeChild",
    "FakeEnvironment",
    "FakeFileSystem",
    "FakeLine",
    "FakePath",
    "FakeProcess",
    "FileRequest",
    "LostProcess",
    "Program",
    "Recorded",
    "RecordedEnvironment",
    "Recorder",
    "Recording",
    "ScriptedPeer",
    "ScriptedServer",
    "Termination",
    "VirtualTimeLoop",
    "WaitsForEver",
    "replay",
    "run_virtual",
]
