"""Addresses of ssh hosts, from URLs and configured commands."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from holdfast.base.errors import ConnectFailed
from holdfast.base.url_schemes import is_stdio
from holdfast.wire.transports.token_urls import without_password

__all__ = ["PRIVATE_FOLDER", "SERVE", "SshAddress", "SshCommand"]

PRIVATE_FOLDER = ".local/share/holdfast/deployed"
"""Directory below the home on a host that contains everything `holdfast connect` installs."""

SERVE = ("serve", "--listen", "stdio")
"""Arguments of `holdfast` on the host."""

# ssh detects an unreachable host within 30 seconds (10 s, and two unanswered probes).
_ALIVE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=2")

# Options of ssh that take a value, in the same argument or the next.
_WITH_VALUE = "BbcDEeFIiJLlmOoPpQRSWw"

# A command line that every shell splits alike.
_PLAIN = re.compile(r"[\w./:=, -]+")

_HOLDFAST = re.compile(r"holdfast|.*/\.local/share/holdfast/deployed/[^/]+/bin/holdfast")


@dataclass(frozen=True, slots=True)
class SshAddress:
    """Address of a host, and the ssh command to reach it."""

    destination: str
    """`host` or `user@host`; may be an alias of `~/.ssh/config`."""
    ssh: tuple[str, ...] = ("ssh",)
    """The ssh program and the options it needs."""

    @classmethod
    def of_url(cls, url: str, *, ssh: Sequence[str] = ("ssh",)) -> "SshAddress":
        """
        Parse `ssh://[user@]host[:port]`.

        Raises:
            ConnectFailed: It is malformed.
        """
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise _no_url(url, str(error)) from error
        if parts.scheme != "ssh":
            raise _no_url(url, "it has another scheme")
        if not host:
            raise _no_url(url, "it names no host")
        if parts.path not in ("", "/") or parts.query or parts.fragment:
            raise _no_url(url, "nothing may follow the host and its port")
        # It would be visible in the process list.
        if parts.password is not None:
            raise _no_url(url, "it must not contain a password; use a key")
        user = unquote(parts.username or "")
        # Not `hostname`, which is lowercase: aliases in ~/.ssh/config are case-sensitive.
        host = parts.netloc.rpartition("@")[2]
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if host.startswith("-") or user.startswith("-"):
            # ssh would read it as an option.
            raise _no_url(url, "a name must not begin with a dash")
        options = () if port is None else ("-p", str(port))
        return cls(f"{user}@{host}" if user else host, (*ssh, *options))

    @property
    def connect_command(self) -> str:
        """Command line with which a user installs Holdfast on the host."""
        program, *options = self.ssh
        port = ""
        if options[-2:-1] == ["-p"]:
            port = f":{options.pop()}"
            options.pop()
        user, at, host = self.destination.rpartition("@")
        host = f"[{host}]" if ":" in host else host
        ssh = [] if [program, *options] == ["ssh"] else ["--ssh", shlex.join([program, *options])]
        return shlex.join(["holdfast", "connect", *ssh, f"ssh://{user}{at}{host}{port}"])

    def argv(self, command: str) -> list[str]:
        """Return the ssh command that runs `command` in the user's shell on the host."""
        # Do not become a control master: it would end with this process, along with the other
        # sessions on it. ssh takes the first of two equal options, so the user's win.
        mine = ["-o", "ControlMaster=no", "-T", *_ALIVE]
        return [*self.ssh, *mine, "--", self.destination, command]


@dataclass(frozen=True, slots=True)
class SshCommand:
    """A `holdfast` to start on a host."""

    address: SshAddress
    arguments: tuple[str, ...] = SERVE

    @property
    def can_keep(self) -> bool:
        """True if it serves on its standard streams, and the server can outlive them."""
        if self.arguments[:1] not in (("serve",), ("exec-server",)):
            return False
        options = " ".join(self.arguments[1:]).replace("=", " ").split()
        at = options.index("--listen") if "--listen" in options else len(options)
        listens_on = options[at + 1 : at + 2]
        streams = bool(listens_on) and is_stdio(listens_on[0])
        return streams and not {"--keep", "--attach"} & set(options)

    @classmethod
    def of_argv(cls, argv: Sequence[str]) -> "SshCommand | None":
        """
        Parse `ssh [options] destination holdfast serve --listen stdio`; None for anything else.
        """
        if not argv or argv[0].rpartition("/")[2] != "ssh":
            return None
        options, rest = _split_options(argv[1:])
        if not rest:
            return None
        destination, *words = rest
        line = " ".join(words)
        program, *arguments = line.split() or [""]
        if not _PLAIN.fullmatch(line) or not _HOLDFAST.fullmatch(program):
            return None
        return cls(SshAddress(destination, (argv[0], *options)), tuple(arguments))


def _split_options(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split into the options of ssh, and the destination with the command."""
    options: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        options.append(word)
        letters = word[1:]
        # Letters before it are flags; the value is the rest of the argument or the next one.
        takes = next((at for at, letter in enumerate(letters) if letter in _WITH_VALUE), None)
        if takes == len(letters) - 1 and rest:
            options.append(rest.pop(0))
    return options, rest


def _no_url(url: str, why: str) -> ConnectFailed:
    shown = without_password(url)
    expected = "expected `ssh://[USER@]HOST[:PORT]`"
    return ConnectFailed(f"`{shown}` is not the URL of a host: {why}; {expected}")
