"""`holdfast env`: named environments and their state."""

import argparse
import asyncio
import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import msgspec

from holdfast.base.errors import HoldfastError, InvalidConfig
from holdfast.base.suggestions import did_you_mean, listed
from holdfast.environments.config import edit
from holdfast.environments.config.home import environments_file, holdfast_home
from holdfast.environments.config.providers import FileProvider, provider_from_env
from holdfast.environments.config.snapshot import (
    DEFAULT_TIMEOUT,
    LOCAL,
    ConfiguredEnvironments,
    Entry,
    ServerUrl,
    ServingProgram,
)
from holdfast.environments.environment import Environment
from holdfast.environments.local_environment import LocalEnvironment
from holdfast.environments.remote import RemoteEnvironment
from holdfast.front.cli.exit_status import FAILED, Ended, text_with_advice
from holdfast.front.cli.latency import answer_time, server_version
from holdfast.front.cli.server_options import say_ignored_variable, split_command
from holdfast.front.cli.table import aligned
from holdfast.front.cli.token import read_token
from holdfast.wire.protocol.handshake import EnvironmentInfo
from holdfast.wire.transports.token_urls import without_password

__all__ = ["env"]

# Seconds for an environment to connect and respond; most fail earlier by their own timeouts.
_LIMIT = 60.0

# Environments that are checked concurrently.
_AT_ONCE = 16


def env(operation: str, options: argparse.Namespace) -> int:
    """Run an operation and return the exit status."""
    try:
        return {
            "list": _list,
            "show": _show,
            "check": _check,
            "add": _add,
            "remove": _remove,
        }[operation](options)
    except Ended as end:
        print(f"holdfast: {end.text}", file=sys.stderr)
        # 125 is only for subcommands that run a command, whose own status could be 1.
        return 1 if end.status == FAILED else end.status
    except InvalidConfig as error:
        print(f"holdfast: {text_with_advice(error)}", file=sys.stderr)
        return 1


# -- the file


def _path(options: argparse.Namespace) -> Path:
    if options.file is not None:
        return Path(options.file)
    return environments_file(os.environ)


def _snapshot(options: argparse.Namespace) -> ConfiguredEnvironments:
    if options.file is not None:
        return FileProvider(Path(options.file)).snapshot()
    return provider_from_env(os.environ, holdfast_home(os.environ)).snapshot()


def _add(options: argparse.Namespace) -> int:
    transport: ServerUrl | ServingProgram
    if options.url is not None:
        if options.cwd is not None:
            # Status 2, as in argparse for an invalid command line.
            raise Ended(2, "--cwd can only be used with --cmd; a server has its own directory")
        token = None if options.token_file is None else read_token(options.token_file)
        transport = ServerUrl(
            url=options.url,
            bearer_token=token,
            connect_timeout=_seconds(options.connect_timeout),
        )
    else:
        if options.token_file is not None or options.connect_timeout is not None:
            raise Ended(2, "--token-file and --connect-timeout can only be used with --url")
        program, *args = split_command(options.cmd) or [""]
        transport = ServingProgram(program=program, args=tuple(args), cwd=options.cwd)
    timeout = _seconds(options.initialize_timeout)
    path = _path(options)
    edit.add(
        path,
        Entry(id=options.id, transport=transport, initialize_timeout=timeout),
        default=options.default,
    )
    print(f"added `{options.id}` to {path}")
    return 0


def _seconds(given: float | None) -> float:
    return DEFAULT_TIMEOUT if given is None else given


def _remove(options: argparse.Namespace) -> int:
    path = _path(options)
    edit.remove(path, options.id)
    print(f"removed `{options.id}` from {path}")
    return 0


# -- the configuration


def _list(options: argparse.Namespace) -> int:
    snapshot = _snapshot(options)
    # Checks all names before the first connection.
    environments = [_NamedEnvironment(name, snapshot) for name in snapshot.ids]
    # For shell completion, which reads one name per line.
    if options.names:
        print("".join(f"{environment.name}\n" for environment in environments), end="")
        return 0
    if options.json:
        print(json.dumps([environment.facts() for environment in environments], indent=2))
        return 0
    if options.file is None:
        say_ignored_variable(lambda text: print(f"holdfast: {text}", file=sys.stderr))
    if not environments:
        print("there are no environments", file=sys.stderr)
        return 0
    rows = [
        [environment.name, environment.kind, environment.where, environment.mark]
        for environment in environments
    ]
    print("\n".join(aligned(["NAME", "KIND", "WHERE", "DEFAULT"], rows)))
    return 0


class _NamedEnvironment:
    """A configured environment."""

    def __init__(self, name: str, snapshot: ConfiguredEnvironments) -> None:
        self.name = name
        self.is_default = name == snapshot.default
        self.entry = snapshot.entry(name)
        if self.entry is None and name not in snapshot.ids:
            raise InvalidConfig(
                f"unknown environment id `{name}`" + did_you_mean(name, snapshot.ids),
                f"configured: {listed(snapshot.ids)}",
            )

    @property
    def mark(self) -> str:
        return "default" if self.is_default else ""

    @property
    def kind(self) -> str:
        match self.entry:
            case None:
                return LOCAL
            case Entry(transport=ServerUrl()):
                return "server"
            case _:
                return "command"

    @property
    def where(self) -> str:
        if self.entry is None:
            return "this machine"
        match self.entry.transport:
            case ServerUrl(url=url):
                return without_password(url)
            case ServingProgram(program=program, args=args):
                return shlex.join([program, *args])

    def facts(self) -> dict[str, object]:
        """Return its configuration for JSON; of a token only whether there is one."""
        facts: dict[str, object] = {
            "id": self.name,
            "kind": self.kind,
            "default": self.is_default,
        }
        if self.entry is None:
            return facts
        match self.entry.transport:
            case ServerUrl() as it:
                facts |= {
                    "url": it.url,
                    "token": it.bearer_token is not None,
                    "connectTimeout": it.connect_timeout,
                }
            case ServingProgram() as it:
                facts |= {"command": [it.program, *it.args], "env": sorted(it.env), "cwd": it.cwd}
        return facts | {"initializeTimeout": self.entry.initialize_timeout}

    def open(self) -> Environment:
        """Return the environment, which connects on first use."""
        return LocalEnvironment() if self.entry is None else RemoteEnvironment.of(self.entry)


# -- connecting


@dataclass(frozen=True, slots=True)
class _CheckResult:
    """Result of connecting to an environment."""

    environment: _NamedEnvironment
    error: str | None = None
    info: EnvironmentInfo | None = None
    connected: float = 0.0
    # Seconds of one round trip.
    answers: float = 0.0

    def facts(self) -> dict[str, object]:
        facts = self.environment.facts() | {
            "status": "ready" if self.error is None else "disconnected",
            "error": self.error,
        }
        if self.info is not None:
            facts |= {
                "connectedMs": round(self.connected * 1000, 3),
                "latencyMs": round(self.answers * 1000, 3),
                "info": msgspec.to_builtins(self.info),
            }
        return facts

    @property
    def capabilities(self) -> list[str]:
        """Names of its capabilities, as on the wire."""
        if self.info is None:
            return []
        flags: dict[str, bool] = msgspec.to_builtins(self.info.capabilities)
        return [name for name, has in flags.items() if has]


async def _look(configured: _NamedEnvironment) -> _CheckResult:
    environment = configured.open()
    began = perf_counter()
    try:
        async with asyncio.timeout(_LIMIT), environment:
            info = await environment.info()
            connected = perf_counter() - began
            return _CheckResult(
                configured,
                info=info,
                connected=connected,
                answers=await answer_time(environment.status),
            )
    except TimeoutError:
        return _CheckResult(configured, error=f"no answer within {_LIMIT:.0f} s")
    except HoldfastError as error:
        return _CheckResult(configured, error=str(error))


async def _look_at_all(environments: list[_NamedEnvironment]) -> list[_CheckResult]:
    # Each check may start a process, such as ssh.
    turns = asyncio.Semaphore(_AT_ONCE)

    async def look(environment: _NamedEnvironment) -> _CheckResult:
        async with turns:
            return await _look(environment)

    async with asyncio.TaskGroup() as tasks:
        looks = [tasks.create_task(look(environment)) for environment in environments]
    return [task.result() for task in looks]


def _check(options: argparse.Namespace) -> int:
    snapshot = _snapshot(options)
    environments = [_NamedEnvironment(name, snapshot) for name in options.ids or snapshot.ids]
    found = asyncio.run(_look_at_all(environments))
    if options.json:
        print(json.dumps([one.facts() for one in found], indent=2))
    else:
        head = ["NAME", "STATUS", "SERVER", "PROTOCOL", "SYSTEM", "CONNECTED", "LATENCY"]
        print("\n".join(aligned(head, [_row(one) for one in found])))
        for one in found:
            if one.error is not None:
                print(f"holdfast: {one.environment.name}: {one.error}", file=sys.stderr)
    return 1 if any(one.error is not None for one in found) else 0


def _row(found: _CheckResult) -> list[str]:
    if found.info is None:
        return [found.environment.name, "disconnected", "", "", "", "", ""]
    return [
        found.environment.name,
        "ready",
        server_version(found.info),
        found.info.executor_version or "",
        found.info.platform_os or "",
        _milliseconds(found.connected),
        _milliseconds(found.answers),
    ]


def _show(options: argparse.Namespace) -> int:
    found = asyncio.run(_look(_NamedEnvironment(options.id, _snapshot(options))))
    if options.json:
        print(json.dumps(found.facts(), indent=2))
        return 0 if found.error is None else 1
    rows = [
        ["name", found.environment.name + (", the default" if found.environment.is_default else "")]
    ]
    rows += [["kind", found.environment.kind], ["where", found.environment.where]]
    match found.environment.entry:
        case Entry(transport=ServerUrl(bearer_token=str())):
            rows.append(["token", "set"])
        case Entry(transport=ServingProgram(cwd=str() as cwd)):
            rows.append(["cwd", cwd])
    rows.append(["status", "ready" if found.error is None else f"disconnected: {found.error}"])
    if found.info is not None:
        info = found.info
        rows += [
            ["server", server_version(info)],
            ["protocol", info.executor_version or "unknown"],
            ["system", info.platform_os or "unknown"],
            ["shell", info.shell.path],
            ["folder", info.cwd or "unknown"],
            ["connected", f"in {_milliseconds(found.connected)}"],
            ["latency", _milliseconds(found.answers)],
            ["can", " ".join(found.capabilities) or "nothing beyond the base"],
        ]
    # Not a table, which would put long values into narrow columns.
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name.ljust(width)}  {value}")
    return 0 if found.error is None else 1


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
