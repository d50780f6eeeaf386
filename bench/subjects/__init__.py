"""
Programs that run commands on this machine, each through another library.

One per subject, so that each is measured in a fresh process and by the interpreter that has its
packages: `python -m bench.subjects.bare true 100`. Each passes a way to run commands to
`bench.subjects.harness` and prints nothing else.
"""
