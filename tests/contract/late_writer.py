"""
Exits at once, and leaves a child that writes `ta`, 30 ms later `il`, and then holds stdout.

    python late_writer.py SECONDS REPORT

The child holds it for so many seconds. It writes to the file REPORT how many seconds passed at
most between the exit and `ta`, and between `ta` and `il`: on a busy machine more than it slept.
It is in a session of its own, so that it can report also if it was too late and is ended.
"""

import os
import sys
import time
from contextlib import suppress

started = time.monotonic()
if os.fork() == 0:
    os.setsid()
    before = time.monotonic()
    with suppress(BrokenPipeError):
        os.write(1, b"ta")
    first = time.monotonic() - started
    time.sleep(0.03)
    with suppress(BrokenPipeError):
        os.write(1, b"il")
    second = time.monotonic() - before
    with open(sys.argv[2], "w") as report:
        report.write(f"{first} {second}\n")
    time.sleep(float(sys.argv[1]))
os._exit(0)
