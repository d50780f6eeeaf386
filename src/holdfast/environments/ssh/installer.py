"""
Installs Holdfast on an ssh host, for one user and in one directory, and removes it.

Nothing happens without consent. If the host's Python can load them, the local files are copied
byte for byte; otherwise the host's pip installs a wheel.
"""

import asyncio
import inspect
import json
import logging
import sysconfig
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from holdfast.base.errors import ConnectFailed
from holdfast.base.version import __version__
from holdfast.client.supervised_command import command_environment
from holdfast.environments.ssh import remote_installer
from holdfast.environments.ssh.address import PRIVATE_FOLDER, SshAddress
from holdfast.environments.ssh.bootstrap import MARK, Missing, removal_line
from holdfast.environments.ssh.bundle import Bundle, pack_files, pack_wheel

__all__ = ["Consent", "Offer", "offer", "remove"]

logger = logging.getLogger(__name__)

# Seconds for an installation, with a slow connection and the host's pip.
_INSTALL_LIMIT = 900.0

_REMOVE_LIMIT = 60.0

# Its source is sent to the host and run there.
_FAR_SIDE = Path(remote_installer.__file__).read_text()


@dataclass(frozen=True, slots=True)
class Offer:
    """A proposed installation, for the user to decide on."""

    address: SshAddress
    found: Missing
    folder: str
    """Directory of the installation; nothing outside it changes."""
    bundle: Bundle

    @property
    def text(self) -> str:
        """Description of the installation for the user."""
        how = "copied from this machine"
        if self.bundle.how == "wheel":
            how = "sent there; the host's pip fetches dependencies from its package index"
        return (
            f"Holdfast {__version__} is not on {self.address.destination}"
            f" ({self.found.system}, Python {self.found.about} at {self.found.python}).\n"
            f"It can be installed there for this user only: {len(self.bundle.data) / 1e6:.1f} MB"
            f" {how}, into {self.folder}. Nothing else is changed, and"
            f" `{self.address.connect_command} --remove` removes it again."
        )

    async def accept(self) -> str:
        """
        Install Holdfast on the host.

        Returns:
            The program on the host.

        Raises:
            ConnectFailed: Nothing was installed; the message says why.
        """
        source = _FAR_SIDE
        source += f"\n_main({PRIVATE_FOLDER!r}, {MARK!r})\n"
        sent = source.encode() + json.dumps(self.bundle.header()).encode() + b"\n"
        # The script is sent first on stdin, so that no shell has to quote it.
        line = f"import sys;exec(sys.stdin.buffer.read({len(source.encode())}))"
        command = f"'{self.found.python}' -I -c '{line}'"
        logger.info("installing holdfast on %s: %s", self.address.destination, self.folder)
        kind, text = await _run(
            self.address, command, sent + self.bundle.data, limit=_INSTALL_LIMIT
        )
        if kind != "installed":
            raise ConnectFailed(
                f"holdfast {__version__} could not be installed on"
                f" {self.address.destination}: {text}"
            )
        return text


Consent: TypeAlias = "bool | Callable[[Offer], bool | Awaitable[bool]]"
"""True to install without asking, False to refuse, or a function that decides."""


async def offer(address: SshAddress, found: Missing, consent: Consent) -> str | None:
    """
    Install Holdfast with consent, if possible.

    Returns:
        The program on the host, or None without consent.

    Raises:
        ConnectFailed: The host cannot run it.
    """
    if found.python is None:
        there = f" ({found.about})" if found.about else ""
        raise ConnectFailed(
            f"holdfast {__version__} is not on {address.destination}, and cannot be installed:"
            f" the host has no Python 3.11 or newer on PATH{there}"
        )
    if consent is False:
        return None
    bundle: Bundle | None = None
    # Extension modules can only be copied to a Python with the same ABI.
    if found.soabi == sysconfig.get_config_var("SOABI"):
        bundle = await asyncio.to_thread(pack_files)
    if bundle is None:
        bundle = await asyncio.to_thread(pack_wheel)
    made = Offer(address, found, f"{found.home}/{PRIVATE_FOLDER}/{__version__}", bundle)
    if consent is not True:
        answer = consent(made)
        if not (await answer if inspect.isawaitable(answer) else answer):
            return None
    return await made.accept()


async def remove(address: SshAddress) -> tuple[bool, str]:
    """
    Remove all versions installed for this user.

    Returns:
        True if a version was installed, and the directory.

    Raises:
        ConnectFailed: It could not be removed.
    """
    kind, text = await _run(address, removal_line(), b"", limit=_REMOVE_LIMIT)
    if kind not in ("removed", "nothing"):
        raise ConnectFailed(f"cannot remove holdfast from {address.destination}: {text}")
    return kind == "removed", text


async def _run(address: SshAddress, command: str, data: bytes, *, limit: float) -> tuple[str, str]:
    """
    Run a command on the host with this input.

    Returns:
        The two fields after the mark in its output; else `failed` and the reason.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *address.argv(command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=command_environment({}),
        )
    except OSError as error:
        raise ConnectFailed(
            f"cannot start {address.ssh[0]}: {error.strerror}",
            errno=error.errno,
            program=address.ssh[0],
        ) from error
    try:
        async with asyncio.timeout(limit):
            out, err = await process.communicate(data)
    except TimeoutError:
        return "failed", f"it took more than {limit:g} seconds"
    finally:
        # After a timeout or a cancellation.
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    for line in out.decode("utf-8", "replace").splitlines():
        kind, tab, text = line.removeprefix(MARK).partition("\t")
        if line.startswith(MARK) and tab:
            return kind, text
    said = err.decode("utf-8", "replace").strip().splitlines()
    return "failed", said[-1] if said else f"ssh ended with status {process.returncode}"
