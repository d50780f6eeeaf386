"""Options of `holdfast fs`, whose code is imported when it is run."""

import argparse
from typing import TypeAlias

from holdfast.front.cli.server_options_parser import add_environment_options, add_verbose_option
from holdfast.front.cli.suggesting_parser import late

__all__ = ["add_fs"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_ABOUT = """\
List, read, copy and move files, here or on a server.

Paths are on the machine that --on, --url or --cmd names, or else in the default environment,
which is this machine unless you chose another. A relative path starts in the directory of the
server. A `file:` URI is used unchanged.
"""

_EXAMPLES = """\
examples:
  holdfast fs ls -l --url ws://127.0.0.1:4500 /srv
  holdfast fs put --cmd "ssh build holdfast serve --listen stdio" release.tar /srv/
  holdfast fs get --url ws://127.0.0.1:4500 --resume /srv/big.img
  holdfast fs put -r --on build src tests README.md /srv/app/
  tar c . | holdfast fs put --url ws://127.0.0.1:4500 - /tmp/copy.tar

exit status: 0, or 1 after a failure, 2 for an error in the command line, 4 if the only
failures are missing files, 125 without a connection.
"""


def add_fs(commands: _Commands) -> None:
    """Add the subcommand and its subcommands."""
    common = _common_options()
    fs = commands.add_parser(
        "fs",
        help="list, read, copy and move files, here or on a server",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    operations: _Commands = fs.add_subparsers(
        title="operations", metavar="OPERATION", required=True
    )

    ls = _add(operations, common, "ls", "list directories")
    ls.add_argument("paths", metavar="PATH", nargs="*", help="default: the current directory")
    ls.add_argument("-l", dest="long", action="store_true", help="with types, sizes and times")
    ls.add_argument("-a", action="store_true", help="has no effect: hidden files are always listed")
    ls.add_argument(
        "-r", "-R", dest="recursive", action="store_true", help="list subdirectories, too"
    )
    ls.add_argument("--json", action="store_true", help="print one JSON array with all metadata")

    cat = _add(operations, common, "cat", "write files to stdout")
    cat.add_argument("paths", metavar="PATH", nargs="+")

    _add_transfers(operations, common)

    rm = _add(operations, common, "rm", "remove files and directories")
    rm.add_argument("paths", metavar="PATH", nargs="+")
    rm.add_argument(
        "-r", dest="recursive", action="store_true", help="remove directories and their contents"
    )
    rm.add_argument("-f", dest="force", action="store_true", help="ignore missing files")

    mkdir = _add(operations, common, "mkdir", "create directories and their parents")
    mkdir.add_argument("paths", metavar="PATH", nargs="+", help="may already exist")

    cp = _add(operations, common, "cp", "copy files or directories on the same machine")
    cp.add_argument("sources", metavar="SOURCE", nargs="+")
    cp.add_argument("target", metavar="TARGET", help="if it is a directory, into it")
    cp.add_argument(
        "-r", dest="recursive", action="store_true", help="include the contents of directories"
    )

    mv = _add(operations, common, "mv", "move or rename files or directories on the same machine")
    mv.add_argument("sources", metavar="SOURCE", nargs="+")
    mv.add_argument("target", metavar="TARGET", help="if it is a directory, into it")


def _add_transfers(operations: _Commands, common: argparse.ArgumentParser) -> None:
    get = _add(operations, common, "get", "copy files or directories to this machine")
    get.add_argument(
        "paths",
        metavar="SOURCE [SOURCE…] [TARGET]",
        nargs="+",
        help="remote sources and a local target: - is stdout (default: the current directory)",
    )
    get.add_argument(
        "-r", dest="recursive", action="store_true", help="include the contents of directories"
    )
    get.add_argument("--resume", action="store_true", help="continue an earlier attempt")

    put = _add(
        operations,
        common,
        "put",
        "copy local files or directories there; not resumable, since files are replaced atomically",
    )
    put.add_argument("sources", metavar="SOURCE", nargs="+", help="a local path; - is stdin")
    put.add_argument(
        "target", metavar="TARGET", help="a remote path; if it is a directory, into it"
    )
    put.add_argument(
        "-r", dest="recursive", action="store_true", help="include the contents of directories"
    )


def _common_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options of all operations."""
    parser = argparse.ArgumentParser(add_help=False)
    add_environment_options(parser)
    add_verbose_option(parser)
    return parser


def _add(
    operations: _Commands, common: argparse.ArgumentParser, name: str, about: str
) -> argparse.ArgumentParser:
    parser = operations.add_parser(name, help=about, description=about, parents=[common])
    parser.set_defaults(run=late("holdfast.front.cli.fs:fs", name))
    return parser
