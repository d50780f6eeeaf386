"""`holdfast serve`: a server with a process of its own, under a guardian."""

import argparse
import os
import signal
import sys

from holdfast.base.dialect import texts
from holdfast.base.errors import InvalidConfig
from holdfast.base.late_import import load
from holdfast.base.regular_files import read_regular
from holdfast.base.suggestions import closest
from holdfast.base.url_schemes import is_stdio
from holdfast.engine.supervision.guardian import STOP_LIMIT, run_guarded
from holdfast.front.cli.listen_parser import ListenAction

__all__ = ["reloads", "serve"]

# Seconds that a kept server waits for its first connection, and after its last session. Nobody
# can come back then: a session counts as use until it has expired.
_KEPT_IDLE = 10.0


def serve(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """
    Start a server, print its URL, and serve until a signal or the end of stdin.

    Args:
        parser: The parser of this subcommand; it reads the config file, too.
        options: The parsed command line.
    """
    given = options

    def read() -> argparse.Namespace:
        return with_config(given, parser)

    try:
        options = read()
    except InvalidConfig as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    if options.keep or options.attach is not None:
        return _serve_kept(options)
    # The worker is loaded after the fork, so that the guardian stays small.
    return run_guarded(
        lambda lifeline: load("holdfast.front.cli.server_worker:run_server")(
            options, lifeline, lambda url: _announce(url, options), read=read
        ),
        pass_on=(signal.SIGHUP,) if reloads(options) else (),
        stop_limit=STOP_LIMIT + options.drain,
        notify=True,
    )


def reloads(options: argparse.Namespace) -> bool:
    """Return True if SIGHUP reloads files; otherwise it ends the server."""
    has_files = options.token_file is not None or options.tls_cert is not None
    # Clients end `exec-server` by SIGHUP, so it reloads only if it has files.
    return (has_files or not options.as_codex) and not is_stdio(options.listen)


def _serve_kept(options: argparse.Namespace) -> int:
    """Connect the standard streams to a server that outlives them."""
    if not is_stdio(options.listen) or options.also_listen:
        print("Error: --keep and --attach are for `--listen stdio`", file=sys.stderr)
        return 1
    if options.attach is not None:
        if options.keep:
            print("Error: --keep and --attach exclude each other", file=sys.stderr)
            return 1
        status: int = load("holdfast.front.cli.bridge:attach")(options.attach)
        return status
    if options.idle_exit is None:
        options.idle_exit = _KEPT_IDLE
    ended: int = load("holdfast.front.cli.bridge:start_kept")(
        lambda lifeline, announce, keeping: load("holdfast.front.cli.server_worker:run_server")(
            options, lifeline, announce, keeping
        )
    )
    return ended


def _announce(url: str, options: argparse.Namespace) -> None:
    print(url, flush=True)
    if os.environ.get("HOLDFAST_HINT"):
        asks = not (options.no_auth or options.insecure_no_auth or options.as_codex)
        print(
            "\nTry it from another terminal:\n"
            f"  scripts/holdfast run --url {url} -- echo hello\n"
            + (texts.TRY_WITH_TOKEN if asks else texts.try_without_token(url)),
            file=sys.stderr,
            flush=True,
        )


# Not `typing.TYPE_CHECKING`: loading `typing` would make every guardian larger.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["with_config"]

# Bytes; a larger file is not a config file.
_MAX_BYTES = 1 << 20

# Metavars of options that take a path; in the file it is relative to the file's directory.
_PATHS = ("PATH", "FILE")


def with_config(options: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """
    Return the options with those of the config file.

    Args:
        options: The parsed command line. `config` names the file; otherwise `default_config`
            does, if it exists. A server on stdio reads only a named file, since it belongs to
            its caller.
        parser: The parser that made them.

    Raises:
        InvalidConfig: The file cannot be read, or has an unknown key.
    """
    path = options.config
    if path is None:
        path = options.default_config
        streams = is_stdio(options.listen) or options.keep or options.attach
        if path is None or streams or not os.path.lexists(path):
            return options
    known = _options_of(parser)
    found: dict[str, Any] = {}
    for key, value in _read(path).items():
        action = known.get(key)
        if action is None:
            # Escaped, since the key may contain anything.
            shown = key.encode("unicode_escape").decode()
            raise InvalidConfig(f"{path}: there is no option `{shown}`{_suggestion(key, known)}")
        try:
            first, *more = _converted(action, value, os.path.dirname(os.path.abspath(path)))
        except (argparse.ArgumentTypeError, TypeError, ValueError) as error:
            raise InvalidConfig(f"{path}: {key}: {error}") from error
        found[action.dest] = first
        if isinstance(action, ListenAction):
            found["also_listen"] = tuple(more)
    # argparse keeps what a namespace has, unless the command line sets it.
    merged = parser.parse_args(options.arguments[1:], argparse.Namespace(**found))
    return argparse.Namespace(**{**vars(options), **vars(merged)})


def _options_of(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """Return the options that a file may have, by their long names without the dashes."""
    return {
        name.removeprefix("--"): action
        for action in parser._actions  # noqa: SLF001 - there is no other way to look at them
        for name in action.option_strings
        if name.startswith("--") and action.dest not in ("help", "config")
    }


def _read(path: str) -> "dict[str, Any]":
    try:
        content = read_regular(path, largest=_MAX_BYTES)
    except OSError as error:
        raise InvalidConfig(
            f"cannot read {path}: {error.strerror}", errno=error.errno, path=path
        ) from error
    try:
        # Loaded only if there is a file: this is the guardian.
        table: dict[str, Any] = load("tomllib:loads")(content.decode())
    except UnicodeDecodeError as error:
        raise InvalidConfig(f"{path} is no UTF-8 text") from error
    # `tomllib.TOMLDecodeError` is a ValueError.
    except (ValueError, RecursionError) as error:
        raise InvalidConfig(f"{path}: {error}") from error
    return table


def _suggestion(key: str, known: dict[str, argparse.Action]) -> str:
    close = closest(key.replace("_", "-"), known)
    return f"; did you mean `{close}`?" if close else ""


def _converted(action: argparse.Action, value: object, folder: str) -> "list[Any]":
    """
    Return the values of an option in the file as they would be on the command line.

    Only `listen`, which may be repeated there, takes a list here and has more than one.

    Raises:
        TypeError: It is of another type, such as a text for a switch.
        ValueError: The option does not take it.
    """
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise TypeError(f"expected true or false, not {_type_name(value)}")
        return [value]
    values = value if isinstance(value, list) and isinstance(action, ListenAction) else [value]
    if not values:
        raise ValueError("the list is empty")
    return [_one(action, item, folder) for item in values]


def _one(action: argparse.Action, value: object, folder: str) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"expected a text or a number, not {_type_name(value)}")
    if action.type is None and not isinstance(value, str):
        raise TypeError(f"expected a text, not {_type_name(value)}")
    text = str(value)
    if "\0" in text:
        raise ValueError("a NUL is not allowed here")
    if action.metavar in _PATHS:
        text = os.path.join(folder, text)
    try:
        found = action.type(text) if callable(action.type) else text
    except (TypeError, ValueError) as error:
        raise ValueError(f"{text!r} is not what the option takes") from error
    if action.choices is not None and found not in action.choices:
        raise ValueError(f"expected {' or '.join(map(str, action.choices))}, not {text!r}")
    return found


def _type_name(value: object) -> str:
    names = {bool: "true or false", str: "a text", int: "a number", float: "a number"}
    names |= {list: "a list", dict: "a table"}
    return names.get(type(value), "a date or a time")
