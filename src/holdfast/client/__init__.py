"""The other end of the wire: processes of a server behind the same seam as local ones."""

from holdfast.client.client import ExecServerClient

__all__ = ["ExecServerClient"]
