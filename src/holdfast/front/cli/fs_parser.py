"""The options of `holdfast fs`. Their code is imported only when one is run."""

import argparse
from typing import TypeAlias

from holdfast.front.cli.server_options_parser import add_environment_options, add_verbose_option
from holdfast.front.cli.suggesting_parser import late

__all__ = ["add_fs"]

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - the only name it has

_ABOUT = """\
Look at files and move them, here or on a server.

A path is one of the machine that --on, --url or --cmd names, or else of the default environment,
which is this machine unless you chose another; a relative one begins in the folder that its
server runs in. A `file:` URI is taken as it is.
"""

_EXAMPLES = """\
examples:
  holdfast fs ls -l --url ws://127.0.0.1:4500 /srv
  holdfast fs put --cmd "ssh build holdfast serve --listen stdio" release.tar /srv/
  holdfast fs get --url ws://127.0.0.1:4500 --resume /srv/big.img
  holdfast fs put -r --on build src tests README.md /srv/app/
  tar c . | holdfast fs put --url ws://127.0.0.1:4500 - /tmp/copy.tar

exit status: 0, or 1 if something failed, 2 for a mistake in the command line, 4 if all
that failed is that there is no such file, 125 if there is no connection.
"""


def add_fs(commands: _Commands) -> None:
    """Add the subcommand and its own subcommands."""
    common = _common_options()
    fs = commands.add_parser(
        "fs",
        help="look at files and move them, here or on a server",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    operations: _Commands = fs.add_subparsers(
        title="operations", metavar="OPERATION", required=True
    )

    ls = _add(operations, common, "ls", "list folders")
    ls.add_argument("paths", metavar="PATH", nargs="*", help="default: the folder one is in")
    ls.add_argument("-l", dest="long", action="store_true", help="with kinds, sizes and times")
    ls.add_argument("-a", action="store_true", help="changes nothing: hidden files are listed, too")
    ls.add_argument("-r", "-R", dest="recursive", action="store_true", help="all that is below")
    ls.add_argument("--json", action="store_true", help="one JSON array, with all that is known")

    cat = _add(operations, common, "cat", "write files to stdout")
    cat.add_argument("paths", metavar="PATH", nargs="+")

    _add_transfers(operations, common)

    rm = _add(operations, common, "rm", "remove files and folders")
    rm.add_argument("paths", metavar="PATH", nargs="+")
    rm.add_argument("-r", dest="recursive", action="store_true", help="folders with all below")
    rm.add_argument("-f", dest="force", action="store_true", help="what is not there is fine")

    mkdir = _add(operations, common, "mkdir", "make folders, and those above them")
    mkdir.add_argument("paths", metavar="PATH", nargs="+", help="one that is there is fine")

    cp = _add(operations, common, "cp", "copy files or folders, all on the same machine")
    cp.add_argument("sources", metavar="SOURCE", nargs="+")
    cp.add_argument("target", metavar="TARGET", help="in it if it is a folder")
    cp.add_argument("-r", dest="recursive", action="store_true", help="a folder and all below")

    mv = _add(operations, common, "mv", "move or rename files or folders of the same machine")
    mv.add_argument("sources", metavar="SOURCE", nargs="+")
    mv.add_argument("target", metavar="TARGET", help="in it if it is a folder")


def _add_transfers(operations: _Commands, common: argparse.ArgumentParser) -> None:
    get = _add(operations, common, "get", "fetch files or folders to this machine")
    get.add_argument(
        "paths",
        metavar="SOURCE [SOURCE…] [TARGET]",
        nargs="+",
        help="sources there, and a target here: - is stdout (default: the current folder)",
    )
    get.add_argument("-r", dest="recursive", action="store_true", help="a folder and all below")
    get.add_argument(
        "--resume", action="store_true", help="go on with what an earlier attempt left"
    )

    put = _add(
        operations,
        common,
        "put",
        "send files or folders from here; not resumable, as files are replaced in one step",
    )
    put.add_argument("sources", metavar="SOURCE", nargs="+", help="here; - is stdin")
    put.add_argument("target", metavar="TARGET", help="there; in it if it is a folder")
    put.add_argument("-r", dest="recursive", action="store_true", help="a folder and all below")


def _common_options() -> argparse.ArgumentParser:
    """Return a parent parser with the options of every operation."""
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
