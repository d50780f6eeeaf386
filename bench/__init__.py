"""
Measures Holdfast and the real Codex server side by side.

Run it with `python -m bench`. Both servers are spoken to by the same small client
(`bench.client`), which imports nothing of Holdfast, so it favours neither. A
benchmark is not a test: it reports what it saw, and a missed target is a line in
its table rather than a failure.
"""
