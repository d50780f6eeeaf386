"""
`holdfast-sh`: a shell for agents that only know shells.

The file that an agent calls is a small program without an interpreter (`launcher`). It asks
a warm server of the same user what to do (`service`), and gets a list of system calls and a
few descriptors (`tables`). It makes those calls itself. So the shell keeps the streams, the
terminal, the umask, the limits and the place in the process tree that the agent gave, and
the server never starts anything for anybody.
"""
