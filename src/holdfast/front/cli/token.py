"""The token that a server wants to see, which never stands on a command line."""

import argparse
import os

from holdfast.base.token_file import BadTokenFile, read_tokens
from holdfast.environments.config.home import TOKEN_VARIABLE
from holdfast.front.cli.exit_status import FAILED, Ended

__all__ = ["bearer_token", "read_token"]


def bearer_token(options: argparse.Namespace) -> str | None:
    """
    The token to show to a server, from the file or else the variable.

    Raises:
        Ended: The file cannot be used.
    """
    if options.token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    return read_token(options.token_file)


def read_token(path: str) -> str:
    """
    The token in a file that only its user can read; the first, if there are several.

    Raises:
        Ended: It cannot be used.
    """
    try:
        return read_tokens(path)[0].token
    except BadTokenFile as error:
        raise Ended(FAILED, str(error)) from error
