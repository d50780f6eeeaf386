"""
The manual page of `holdfast`, made from the parser; `scripts/man` runs `python -m scripts.manual`.

The page has neither a date nor the width of a terminal, so the same options always make the
same page.
"""

import argparse
import sys
from collections.abc import Iterator

from holdfast.base.version import __version__
from holdfast.front.cli.parser import make_parser
from holdfast.front.cli.serve_parser import SERVER_CONFIG

__all__ = ["manual_page"]

_FILES = (
    (SERVER_CONFIG, "Config file of `holdfast serve`: its options in TOML, without the dashes."),
    ("~/.config/holdfast/environments.toml", "Named environments, see `holdfast env`."),
    ("~/.config/holdfast/mcp.toml", "Config file of `holdfast mcp`."),
    ("~/.config/holdfast/sh.toml", "Settings of `holdfast-sh`."),
    ("~/.config/holdfast/rules/*.rules", "Rules for commands, see `holdfast policy`."),
)

_VARIABLES = (
    ("HOLDFAST_HOME", "Directory used instead of ~/.config/holdfast."),
    ("HOLDFAST_LOG", "Log level of a server unless --log-level is given."),
    ("HOLDFAST_TOKEN", "The bearer token for --url unless --token-file is given."),
    ("LISTEN_FDS, NOTIFY_SOCKET, WATCHDOG_USEC", "Set by systemd; see systemd.exec(5)."),
)


def manual_page() -> str:
    """Return the page as troff source."""
    parser = make_parser()
    lines = [
        f'.TH HOLDFAST 1 "" "holdfast {__version__}" "User Commands"',
        ".SH NAME",
        r"holdfast \- starts processes for agents, here or on another machine",
        ".SH SYNOPSIS",
        ".B holdfast",
        r"\fICOMMAND\fR [\fIOPTION\fR]... [\fIARGUMENT\fR]...",
        ".SH DESCRIPTION",
        _text(parser.description or ""),
        ".SH COMMANDS",
    ]
    for name, about, command in _commands(parser, ""):
        lines += [f".SS holdfast {_escape(name)}", _text(about), *_options(command)]
    lines += [".SH FILES", *_list(_FILES), ".SH ENVIRONMENT", *_list(_VARIABLES)]
    return "\n".join(lines) + "\n"


def _commands(
    parser: argparse.ArgumentParser, prefix: str
) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Yield every subcommand that does something: its name, one line about it, its parser."""
    for action in parser._actions:  # noqa: SLF001 - there is no public access to them
        if not isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            continue
        about = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001
        for name, command in action.choices.items():
            inner = list(_commands(command, f"{prefix}{name} "))
            # Only commands that can be run; `env` alone is a group.
            if not inner:
                yield f"{prefix}{name}", command.description or about.get(name, ""), command
            yield from inner


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # noqa: SLF001
        # Hidden options, and `--help`, which every command has.
        if action.help == argparse.SUPPRESS or action.dest == "help":
            continue
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            continue
        yield ".TP"
        yield _names(action)
        yield _text(_help(action, parser))


def _names(action: argparse.Action) -> str:
    placeholder = action.metavar or (
        "{" + ",".join(map(str, action.choices)) + "}" if action.choices else action.dest.upper()
    )
    shown = " ".join(placeholder) if isinstance(placeholder, tuple) else placeholder
    if not action.option_strings:
        return rf"\fI{_escape(shown)}\fR"
    value = "" if action.nargs == 0 else rf" \fI{_escape(shown)}\fR"
    return ", ".join(rf"\fB{_escape(name)}\fR{value}" for name in action.option_strings)


def _help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    if action.help is None:
        return ""
    return action.help % {**vars(action), "prog": parser.prog}


def _list(pairs: tuple[tuple[str, str], ...]) -> Iterator[str]:
    for name, about in pairs:
        yield from (".TP", rf"\fI{_escape(name)}\fR", _text(about))


def _text(text: str) -> str:
    """Return text as one paragraph that cannot be mistaken for a troff command."""
    return _escape(" ".join(text.split()) or r"No more is to be said of it.")


def _escape(text: str) -> str:
    escaped = text.replace("\\", r"\e").replace("-", r"\-")
    # A line that begins with a dot or a quote is a troff request.
    return rf"\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    sys.stdout.write(manual_page())
