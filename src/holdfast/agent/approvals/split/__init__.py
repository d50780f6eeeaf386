"""
Splitting: the commands that one argument list would run.

There are two views. A narrow one is for what may be allowed (`plain`). A wide one is for what may
have to be asked about or refused (`reader`, `wrappers`, `literals`). Reading is bounded (`budget`).
"""

from holdfast.agent.approvals.split.plain import SplittingUnavailable
from holdfast.agent.approvals.split.simple_command import Split, split_command
from holdfast.agent.approvals.split.words import UNKNOWN

__all__ = ["UNKNOWN", "Split", "SplittingUnavailable", "split_command"]
