"""Reads the token for a server, which is never passed on the command line."""

import argparse
import os

from holdfast.base.token_file import BadTokenFile, read_tokens
from holdfast.environments.config.home import TOKEN_VARIABLE
from holdfast.front.cli.exit_status import FAILED, Ended

__all__ = ["bearer_token", "read_token"]


def bearer_token(options: argparse.Namespace) -> str | None:
    """
    Return the token for a server, from the file or else the variable.

    Raises:
        Ended: The file is unusable.
    """
    if options.token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    return read_token(options.token_file)


def read_token(path: str) -> str:
    """
    Return the first token of a file, which must be readable only by its owner.

    Raises:
        Ended: The file is unusable.
    """
    try:
        return read_tokens(path)[0].token
    except BadTokenFile as error:
        raise Ended(FAILED, str(error)) from error
