"""
Approvals: decide whether a command may run, must be asked about, or is refused.

The package knows commands, rules and people who answer. It starts no command: the tools of
`unified_exec` and `command_exec` do that, with the answer they get from here.
"""
