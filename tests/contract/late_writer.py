"""
Exits at once, and leaves a child that writes `ta`, 30 ms later `il`, and then holds stdout.

    python late_writer.py SECONDS

The child holds it for so many seconds, and has closed stderr.
"""

import os
import sys
import time

if os.fork() == 0:
    os.close(2)
    os.write(1, b"ta")
    time.sleep(0.03)
    os.write(1, b"il")
    time.sleep(float(sys.argv[1]))
os._exit(0)
