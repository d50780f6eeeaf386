"""The token that a server wants to see, which never stands on a command line."""

import argparse
import os

from holdfast.cli.status import FAILED, Ended
from holdfast.environments.config.home import TOKEN_VARIABLE

__all__ = ["bearer_token", "read_token"]


def bearer_token(options: argparse.Namespace) -> str | None:
    """
    The token to show to a server, from the file or else the variable.

    Raises:
        Ended: The file cannot be read, or is empty.
    """
    if options.token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    return read_token(options.token_file)


def read_token(path: str) -> str:
    """
    The token in a file.

    Raises:
        Ended: It cannot be read, or is empty.
    """
    try:
        with open(path, encoding="utf-8") as file:
            token = file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise Ended(FAILED, f"cannot read the token in {path}: {reason}") from error
    if not token:
        raise Ended(FAILED, f"there is no token in {path}")
    return token
