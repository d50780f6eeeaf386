"""Chunks of output as callers get them, as bytes and as text."""

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.wire.protocol.process import OutputChunk, OutputStream

__all__ = ["Chunk", "ChunkDecoder"]

_STREAMS: tuple[OutputStream, ...] = ("stdout", "stderr", "pty")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk of a process's output."""

    stream: OutputStream
    """`stdout` or `stderr`, or `pty` on a terminal."""
    data: bytes
    text: str
    """The bytes as text; a character split between two chunks is in the second."""
    seq: int
    """Its number among all events of the process."""
    missed: int = 0
    """Number of events lost just before it; see `Running.missed`."""

    def __str__(self) -> str:
        return self.text


class ChunkDecoder:
    """Converts output events to chunks, in order."""

    def __init__(self) -> None:
        # One per stream, since a character may be split within a stream, but not across streams.
        self._decoders: dict[OutputStream, codecs.IncrementalDecoder] = {}
        self._missed = 0

    def decode(self, event: OutputChunk) -> Chunk:
        """Return the chunk of an event."""
        decoder = self._decoders.get(event.stream)
        if decoder is None:
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            self._decoders[event.stream] = decoder
        missed, self._missed = self._missed, 0
        text = decoder.decode(event.chunk)
        return Chunk(event.stream, event.chunk, text, event.seq, missed)

    def skip(self, events: int) -> None:
        """Count lost events, and drop incomplete characters before them."""
        self._missed += events
        self._decoders.clear()

    def finish(self, seq: int) -> Iterator[Chunk]:
        """Yield the characters that were never completed."""
        for stream in _STREAMS:
            decoder = self._decoders.get(stream)
            text = "" if decoder is None else decoder.decode(b"", final=True)
            if text:
                yield Chunk(stream, b"", text, seq)
