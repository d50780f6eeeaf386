"""
Measures Holdfast and the real Codex server side by side, and Holdfast beside its peers.

Run it with `python -m bench`. Both servers are spoken to by the same small client
(`bench.client`), which imports nothing of Holdfast, so it favours neither. Libraries
that run commands as Holdfast's own API does are asked by `bench.subjects`. A
benchmark is not a test: it reports what it saw, and a missed target is a line in
its table rather than a failure.
"""
