"""For tests of programs that use Holdfast: stand-ins that do what they are told."""

from holdfast.testing.scripted import ScriptedPeer, ScriptedServer

__all__ = ["ScriptedPeer", "ScriptedServer"]
