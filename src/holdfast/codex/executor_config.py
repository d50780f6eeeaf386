"""
Answer to `environmentConfig/read`: the Codex configuration of this machine.

A client asks for the values of some keys and for the files that set them. It merges the answer with
its own configuration, so the order of the layers matters. Values are only interpreted if they
decide whether another file is read [environment.config]. The rest was observed on the real server.

Layers of `config`, lowest precedence first; missing files are left out:

1. `/etc/codex/config.toml`, named `system (FILE)`;
2. `config.toml` in the Codex home, named `user (FILE)`;
3. `.codex/config.toml` in each trusted directory from the project root down to the cwd,
   named `project (FILE)`;
4. `/etc/codex/managed_config.toml`, named `legacy managed_config.toml (FILE)`.

Layers of `requirements`: `/etc/codex/requirements.toml`, then the rules derived from three keys of
`managed_config.toml`; both are named by their file only. Configuration from the cloud goes above
the first layer of each kind, if that layer is in the answer (`cloudInsertionIndex`).

The project root is the nearest directory, from the cwd upwards, that contains one of
`project_root_markers` (by default `.git`), or otherwise the cwd. A `.git` directory without `HEAD`
does not count. A directory is trusted if the merged layers 1, 2 and 4 say so in `projects`. The
first entry found decides: that of the directory, of the project root, or of the git repository of
the cwd (for a linked work tree, the main one). Each path is looked up as spelled, then with links
resolved. A project may not set the keys in `NOT_FOR_PROJECTS`. The Codex home does not count as a
project's `.codex`.

A projection keeps the order of the file. A path that ends early, at a table without the next key or
at a value that is not a table, selects what it has reached. The `toml` of a layer is written again
from the parsed values, without comments.
"""

from __future__ import annotations

import os
import socket
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from errno import ENOTDIR
from typing import Final, NamedTuple, NoReturn

from holdfast.base.errors import InvalidParams, OperationFailed
from holdfast.base.system_text import system_text
from holdfast.codex.toml_text import Table, spell_toml, spell_value
from holdfast.wire.protocol.environment import ConfigLayer, ConfigReadResponse, ConfigStack
from holdfast.wire.protocol.paths import PathUri

__all__ = [
    "NOT_FOR_PROJECTS",
    "SYSTEM_DIRECTORY",
    "ConfigLoadError",
    "SelectorError",
    "check_selectors",
    "codex_home",
    "executor_hostname",
    "read_executor_config",
]

SYSTEM_DIRECTORY: Final = "/etc/codex"

# Keys that could send data elsewhere or run a program; dropped from project layers.
NOT_FOR_PROJECTS: Final = frozenset(
    {
        "apps_mcp_product_sku",
        "chatgpt_base_url",
        "experimental_realtime_ws_base_url",
        "model_provider",
        "model_providers",
        "notify",
        "openai_base_url",
        "otel",
        "profile",
        "profiles",
    }
)

_APPROVAL_POLICIES: Final = ("untrusted", "on-failure", "on-request", "granular", "never")
_SANDBOX_MODES: Final = ("read-only", "workspace-write", "danger-full-access")
_REVIEWERS: Final = ("user", "auto_review", "guardian_subagent")
# Members of a granular approval policy, with their defaults, if any.
_GRANULAR: Final = {
    "sandbox_approval": None,
    "rules": None,
    "skill_approval": False,
    "request_permissions": False,
    "mcp_elicitations": None,
}


class SelectorError(InvalidParams):
    """The key paths of a request are invalid (-32602)."""


class ConfigLoadError(OperationFailed):
    """The configuration of this machine cannot be read (-32603)."""


class _Layer(NamedTuple):
    source: str
    file: str
    table: Table


def read_executor_config(
    cwd: str,
    config_paths: Sequence[Sequence[str]],
    requirements_paths: Sequence[Sequence[str]],
    *,
    environ: Mapping[str, str],
    home: str | None,
    hostname: str | None,
    system_directory: str = SYSTEM_DIRECTORY,
) -> ConfigReadResponse:
    """
    Read the layers that apply to a directory, reduced to the selected keys.

    Each call reads the files. On the wire, `check_selectors` precedes the check of the cwd; it is
    also called here.

    Args:
        cwd: An absolute path, which need not exist.
        config_paths: Key paths into the layers of `config`.
        requirements_paths: Key paths into the layers of `requirements`.
        environ: Variables, for `CODEX_HOME` and `HOME`.
        home: The home from the user database, for an empty or missing `HOME`.
        hostname: The result of `executor_hostname`.
        system_directory: The directory of the system's files.

    Raises:
        SelectorError: There are no key paths, or one is empty.
        ConfigLoadError: A file cannot be read or is invalid.
    """
    check_selectors(config_paths, requirements_paths)
    user_home = environ.get("HOME") or home
    codex_directory = codex_home(environ, user_home)
    try:
        config, requirements = _load(cwd, codex_directory, system_directory)
    except ConfigLoadError as error:
        raise ConfigLoadError(
            f"failed to load executor-local config: {error}", errno=error.errno, path=error.path
        ) from error
    return ConfigReadResponse(
        user_home_dir=_uri(user_home) if user_home and os.path.isabs(user_home) else None,
        codex_home_dir=_uri(codex_directory),
        hostname=hostname,
        config=_stack(config, config_paths, below_cloud=f"{system_directory}/config.toml"),
        requirements=_stack(
            requirements, requirements_paths, below_cloud=f"{system_directory}/requirements.toml"
        ),
    )


def check_selectors(*path_lists: Sequence[Sequence[str]]) -> None:
    """
    Refuse a request without valid key paths.

    Raises:
        SelectorError: There are no key paths, or one is empty.
    """
    paths = [path for path_list in path_lists for path in path_list]
    if not paths:
        raise SelectorError("at least one config or requirements path is required")
    if not all(paths):
        raise SelectorError("TOML paths must contain at least one key segment")


def executor_hostname() -> str:
    """
    Return the fully qualified name of this host in lower case.

    The resolver may use the network: call this once, outside the event loop.
    """
    name = socket.gethostname()
    try:
        canonical = socket.getaddrinfo(name, None, flags=socket.AI_CANONNAME)[0][3]
    except OSError:
        canonical = ""
    return (canonical or name).lower()


def _uri(path: str) -> str:
    return str(PathUri.from_path(path))


def codex_home(environ: Mapping[str, str], user_home: str | None) -> str:
    """
    Return the Codex home, which need not exist unless `CODEX_HOME` names it.

    Raises:
        ConfigLoadError: The home is unknown, or `CODEX_HOME` is invalid.
    """
    chosen = environ.get("CODEX_HOME")
    if not chosen:
        if not user_home:
            raise ConfigLoadError("failed to find Codex home: Could not find home directory")
        return os.path.abspath(os.path.join(user_home, ".codex"))
    try:
        found = os.path.realpath(chosen, strict=True)
    except OSError as error:
        number = error.errno
        missing = isinstance(error, FileNotFoundError)
        problem = "does not exist" if missing else f"cannot be used: {system_text(error)}"
    else:
        if os.path.isdir(found):
            return found
        number = ENOTDIR
        problem = "is not a directory"
    raise ConfigLoadError(
        f'failed to find Codex home: CODEX_HOME points to "{chosen}", but that path {problem}',
        errno=number,
        path=chosen,
    )


# Layers.


def _load(cwd: str, codex_home: str, system_directory: str) -> tuple[list[_Layer], list[_Layer]]:
    """Read all files, in the order in which the real server reports their errors."""
    managed = _read_layer(
        "legacy managed_config.toml", f"{system_directory}/managed_config.toml", ""
    )
    system = _read_layer("system", f"{system_directory}/config.toml", _CONFIG_FILE)
    user = _read_layer("user", os.path.join(codex_home, "config.toml"), _CONFIG_FILE)
    requirements_file = f"{system_directory}/requirements.toml"
    text = _read_text(requirements_file, "Failed to read requirements file {}: ")
    requirements = [_Layer(file, file, rules) for _, file, rules in _managed_rules(managed)]
    if text is not None:
        table = _parse(text, requirements_file, "failed to parse requirements layer ")
        requirements.insert(0, _Layer(requirements_file, requirements_file, table))

    # Only these three determine trust: a project must not be able to trust itself.
    below = [layer for layer in (system, user) if layer is not None]
    above = [layer for layer in (managed,) if layer is not None]
    merged: Table = {}
    for layer in (*below, *above):
        merged = _merge(merged, layer.table)
    return [*below, *_project_layers(cwd, codex_home, merged), *above], requirements


_CONFIG_FILE: Final = "Failed to read config file {}: "


def _read_layer(name: str, file: str, blame: str) -> _Layer | None:
    text = _read_text(file, blame)
    if text is None:
        return None
    return _Layer(f"{name} ({file})", file, _parse(text, file))


def _project_layers(cwd: str, codex_home: str, merged: Table) -> Iterator[_Layer]:
    root = _project_root(cwd, _markers(merged))
    trust = _Trust(_projects(merged), (root, _repository_of(cwd)))
    real_codex_home = os.path.realpath(codex_home)
    below = [] if cwd == root else os.path.relpath(cwd, root).split("/")
    for depth in range(len(below) + 1):
        directory = os.path.join(root, *below[:depth])
        dot_codex = os.path.join(directory, ".codex")
        if (
            not os.path.isdir(dot_codex)
            or not trust.covers(directory)
            or os.path.realpath(dot_codex) == real_codex_home
        ):
            continue
        file = os.path.join(dot_codex, "config.toml")
        text = _read_text(file, "Failed to read project config file {}: ")
        if text is not None:
            table = _parse(text, file, "Error parsing project config file ")
            allowed = {key: value for key, value in table.items() if key not in NOT_FOR_PROJECTS}
            yield _Layer(f"project ({file})", file, allowed)


def _markers(merged: Table) -> list[str]:
    markers = merged.get("project_root_markers", [".git"])
    if isinstance(markers, list):
        names = [marker for marker in markers if isinstance(marker, str)]
        if len(names) == len(markers):
            return names
    raise ConfigLoadError("project_root_markers must be an array of strings")


def _projects(merged: Table) -> dict[str, str]:
    """Return the trust level of each directory that has one."""
    projects = merged.get("projects", {})
    if not isinstance(projects, dict):
        _refuse(f"invalid type: {_kind(projects)}, expected a map", "projects")
    levels = {}
    for directory, project in projects.items():
        where = f"projects.{directory}"
        if not isinstance(project, dict):
            _refuse(f"invalid type: {_kind(project)}, expected struct ProjectConfig", where)
        if "trust_level" in project:
            level = _variant(
                project["trust_level"], ("trusted", "untrusted"), f"{where}.trust_level"
            )
            levels[directory] = level
    return levels


class _Trust:
    """The trust levels of a project's directories."""

    def __init__(self, levels: Mapping[str, str], fallbacks: Iterable[str | None]) -> None:
        self._levels = levels
        self._fallbacks = [directory for directory in fallbacks if directory is not None]

    def covers(self, directory: str) -> bool:
        # The first entry decides, even if it says `untrusted` and a later one `trusted`.
        for candidate in (directory, *self._fallbacks):
            for spelling in (candidate, os.path.realpath(candidate)):
                if spelling in self._levels:
                    return self._levels[spelling] == "trusted"
        return False


def _upwards(directory: str) -> Iterator[str]:
    yield directory
    while directory != "/":
        directory = os.path.dirname(directory)
        yield directory


def _project_root(cwd: str, markers: Sequence[str]) -> str:
    for directory in _upwards(cwd):
        for marker in markers:
            path = os.path.join(directory, marker)
            if _is_git_entry(path) if marker == ".git" else os.path.exists(path):
                return directory
    return cwd


def _is_git_entry(path: str) -> bool:
    """Return True for a repository or a pointer to one, but not for an empty `.git`."""
    return os.path.isfile(path) or os.path.exists(os.path.join(path, "HEAD"))


def _repository_of(cwd: str) -> str | None:
    """Return the directory of the repository; for a linked work tree, the main one."""
    for directory in _upwards(cwd):
        entry = os.path.join(directory, ".git")
        if os.path.isfile(entry):
            return _main_work_tree(directory, entry)
        if _is_git_entry(entry):
            return directory
    return None


def _main_work_tree(directory: str, entry: str) -> str | None:
    """
    Follow the pointer of a linked work tree, if the repository points back.

    Anyone can write a pointer, so by itself it must not give a directory the trust of a
    repository that it does not belong to.
    """
    try:
        pointer = _first_line(entry)
        if not pointer.startswith("gitdir:"):
            return None
        private = os.path.join(directory, pointer.removeprefix("gitdir:").strip())
        common = os.path.join(private, _first_line(os.path.join(private, "commondir")))
        back = os.path.join(private, _first_line(os.path.join(private, "gitdir")))
    except (OSError, UnicodeError):
        return None
    # The repository of a real work tree has a file that points back.
    if os.path.realpath(back) != os.path.realpath(entry):
        return None
    parent, name = os.path.split(os.path.realpath(common))
    return parent if name == ".git" else None


def _first_line(file: str) -> str:
    with open(file, encoding="utf-8") as stream:
        return stream.readline(4096).strip()


def _managed_rules(managed: _Layer | None) -> Iterator[_Layer]:
    """Yield the requirements derived from settings that an administrator has fixed."""
    if managed is None:
        return
    rules: Table = {}
    table = managed.table
    try:
        if "approval_policy" in table:
            rules["allowed_approval_policies"] = [_approval_policy(table["approval_policy"])]
        if "approvals_reviewer" in table:
            reviewer = _variant(table["approvals_reviewer"], _REVIEWERS, "approvals_reviewer")
            # Review by the user is always allowed.
            rules["allowed_approvals_reviewers"] = (
                ["user"] if reviewer == "user" else ["auto_review", "user"]
            )
        if "sandbox_mode" in table:
            mode = _variant(table["sandbox_mode"], _SANDBOX_MODES, "sandbox_mode")
            # A stricter sandbox is always allowed.
            rules["allowed_sandbox_modes"] = list(dict.fromkeys(["read-only", mode]))
    except ConfigLoadError as error:
        raise ConfigLoadError(
            f"Failed to parse config requirements as TOML: {error}", path=error.path
        ) from error
    if rules:
        yield managed._replace(table=rules)


def _approval_policy(value: object) -> object:
    if not (isinstance(value, dict) and list(value) == ["granular"]):
        return _variant(value, _APPROVAL_POLICIES, "approval_policy")
    given = value["granular"]
    given = given if isinstance(given, dict) else {}
    granular = {}
    for name, default in _GRANULAR.items():
        setting = given.get(name, default)
        if setting is None:
            _refuse(f"missing field `{name}`", "approval_policy")
        granular[name] = setting
    return {"granular": granular}


def _variant(value: object, allowed: Sequence[str], where: str) -> str:
    if not isinstance(value, str):
        _refuse("invalid type: unit variant, expected string only", where)
    if value not in allowed:
        listed = [f"`{name}`" for name in allowed]
        choices = " or ".join(listed) if len(listed) == 2 else "one of " + ", ".join(listed)
        _refuse(f"unknown variant `{value}`, expected {choices}", where)
    return value


def _refuse(problem: str, where: str) -> NoReturn:
    raise ConfigLoadError(f"{problem}\nin `{where}`\n")


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return f"boolean `{spell_value(value)}`"
    if isinstance(value, int):
        return f"integer `{value}`"
    if isinstance(value, float):
        return f"floating point `{spell_value(value)}`"
    if isinstance(value, str):
        return f'string "{value}"'
    return "sequence" if isinstance(value, list) else "map"


def _merge(lower: Table, higher: Table) -> Table:
    # Tables are merged key by key; any other value of the higher layer replaces the lower one.
    merged = dict(lower)
    for key, value in higher.items():
        old = merged.get(key)
        merged[key] = (
            _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
        )
    return merged


# Files.


def _read_text(file: str, blame: str) -> str | None:
    """
    Return the text of a file, or None if it does not exist.

    Args:
        file: Its path.
        blame: The beginning of an error text, with `{}` for the path.
    """
    number: int | None = None
    try:
        with open(file, "rb", opener=_open_at_once) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                # Directories, FIFOs and devices all get the same text.
                raise IsADirectoryError
            return stream.read().decode("utf-8").removeprefix("\ufeff")
    except FileNotFoundError:
        return None
    except IsADirectoryError:
        problem = f"path `{file}` is not a file"
    except OSError as error:
        number, problem = error.errno, system_text(error)
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 at byte {error.start}"
    raise ConfigLoadError(blame.format(file) + problem, errno=number, path=file)


def _open_at_once(file: str, flags: int) -> int:
    # O_NONBLOCK, since opening a FIFO, which is refused later, would wait for a writer.
    return os.open(file, flags | os.O_NONBLOCK)


def _parse(text: str, file: str, blame: str = "") -> Table:
    """
    Parse TOML.

    Args:
        text: The contents of the file.
        file: Its path.
        blame: The beginning of an error text.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problem = str(error)
    except RecursionError:
        # tomllib recurses for nested tables and arrays.
        problem = "too many levels"
    raise ConfigLoadError(f"{blame}{file}: {problem}", path=file)


# Projections.


def _stack(
    layers: Iterable[_Layer], paths: Sequence[Sequence[str]], *, below_cloud: str
) -> ConfigStack:
    kept: list[ConfigLayer] = []
    cloud = 0
    for source, file, table in layers:
        selected = _project(table, paths)
        if not selected:
            continue
        directory = os.path.dirname(file)
        kept.append(ConfigLayer(source=source, base_dir=_uri(directory), toml=spell_toml(selected)))
        # Layers from the cloud go directly above this one, if it is in the answer.
        cloud += file == below_cloud
    return ConfigStack(layers=kept, cloud_insertion_index=cloud)


def _project(table: Table, paths: Iterable[Sequence[str]]) -> Table:
    """Return the part of a table selected by the paths, in the table's order."""
    below: dict[str, list[Sequence[str]]] = {}
    for key, *rest in paths:
        below.setdefault(key, []).append(rest)
    selected: Table = {}
    for key, value in table.items():
        if key in below:
            rest_of_paths = below[key]
            selected[key] = (
                _project(value, rest_of_paths)
                if isinstance(value, dict) and all(rest_of_paths)
                else value
            )
    return selected
