"""
Finds the commands that an argument list would run.

There are two views: a narrow one for commands that may be allowed (`plain`), and a wide one for
commands that may have to be asked about or refused (`script_reader`, `wrappers`, `literals`).
Reading is bounded (`budget`).
"""

from holdfast.agent.approvals.split.plain import SplittingUnavailable
from holdfast.agent.approvals.split.simple_command import Split, split_command
from holdfast.agent.approvals.split.words import UNKNOWN

__all__ = ["UNKNOWN", "Split", "SplittingUnavailable", "split_command"]
