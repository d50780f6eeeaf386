"""
Measures Holdfast and the real Codex server side by side, and Holdfast next to its peers.

Run it with `python -m bench`. The same small client (`bench.client`) talks to both servers. It
imports nothing of Holdfast, so it favours neither. `bench.subjects` runs commands through other
libraries, as Holdfast's own API does. A benchmark is not a test: it reports what it measured, and a
missed target is a line in its table rather than a failure.
"""
