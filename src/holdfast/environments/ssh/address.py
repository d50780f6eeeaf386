"""A host as `ssh` knows it: from a URL, or from a command that somebody wrote down."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from holdfast.errors import ConnectFailed

__all__ = ["PRIVATE_FOLDER", "SERVE", "SshAddress", "SshCommand"]

PRIVATE_FOLDER = ".local/share/holdfast/deployed"
"""Below the home of a user on a host: what `holdfast connect` installs is there, and only there."""

SERVE = ("serve", "--listen", "stdio")
"""What a `holdfast` on a host is asked to do."""

# A host that cannot be reached any more is noticed within 30 seconds.
_ALIVE = ("-o", "ServerAliveInterval=10", "-o", "ServerAliveCountMax=2")

# Options of ssh that take a value, in the same word or in the next.
_WITH_VALUE = "BbcDEeFIiJLlmOoPpQRSWw"

# A command line that means the same to every shell.
_PLAIN = re.compile(r"[\w./:=, -]+")

_HOLDFAST = re.compile(r"holdfast|.*/\.local/share/holdfast/deployed/[^/]+/bin/holdfast")


@dataclass(frozen=True, slots=True)
class SshAddress:
    """How to reach a host."""

    destination: str
    """`host` or `user@host`; a name of `~/.ssh/config` is fine."""
    ssh: tuple[str, ...] = ("ssh",)
    """The program, and the options it needs to get there."""

    @classmethod
    def of_url(cls, url: str, *, ssh: Sequence[str] = ("ssh",)) -> "SshAddress":
        """
        Read `ssh://[user@]host[:port]`.

        Raises:
            ConnectFailed: It is none.
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
        if parts.password is not None:
            raise _no_url(url, "a password has no place in a URL; use a key")
        user = unquote(parts.username or "")
        # Names are not case-sensitive, but the aliases of ~/.ssh/config are.
        host = parts.netloc.rpartition("@")[2]
        host = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if host.startswith("-") or user.startswith("-"):
            raise _no_url(url, "a name may not begin with a dash")  # ssh would take an option
        options = () if port is None else ("-p", str(port))
        return cls(f"{user}@{host}" if user else host, (*ssh, *options))

    @property
    def connect_command(self) -> str:
        """What a person types to have Holdfast installed there."""
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
        """The command that runs one there; `command` is a line for the shell of that user."""
        # A master of ours would end with us, and with it whatever else had come to use it.
        # Of an option that is there twice the first counts: what the user gave wins.
        mine = ["-o", "ControlMaster=no", "-T", *_ALIVE]
        return [*self.ssh, *mine, "--", self.destination, command]


@dataclass(frozen=True, slots=True)
class SshCommand:
    """A `holdfast` to be started on a host."""

    address: SshAddress
    arguments: tuple[str, ...] = SERVE

    @property
    def can_keep(self) -> bool:
        """True if it serves on its streams, so that its server can be made to outlive them."""
        if self.arguments[:1] not in (("serve",), ("exec-server",)):
            return False
        options = " ".join(self.arguments[1:]).replace("=", " ").split()
        at = options.index("--listen") if "--listen" in options else len(options)
        return options[at + 1 : at + 2] in (["stdio"], ["stdio://"]) and not (
            {"--keep", "--attach"} & set(options)
        )

    @classmethod
    def of_argv(cls, argv: Sequence[str]) -> "SshCommand | None":
        """
        Read `ssh [options] destination holdfast serve --listen stdio`.

        Anything else, such as another program on the host, is none of our business.
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
    """The options of ssh, and what follows them: the destination and the command."""
    options: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        options.append(word)
        letters = word[1:]
        takes = next((at for at, letter in enumerate(letters) if letter in _WITH_VALUE), None)
        if takes == len(letters) - 1 and rest:
            options.append(rest.pop(0))
    return options, rest


def _no_url(url: str, why: str) -> ConnectFailed:
    return ConnectFailed(f"`{url}` is no URL of a host: {why}; expected `ssh://[USER@]HOST[:PORT]`")
