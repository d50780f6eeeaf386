"""
`holdfast-sh`: a drop-in shell for agents that can only call a shell.

The executable is a small program without an interpreter (`launcher`). It connects to a server of
the same user (`service`), which sends a table of system calls and a few descriptors (`tables`).
The launcher makes these calls itself. So the shell keeps the streams, the terminal, the umask,
the rlimits and the parent process that the agent gave. The server never starts a process for a
caller.
"""
