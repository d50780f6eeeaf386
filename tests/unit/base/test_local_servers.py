"""Registry of a user's servers, for clients to find and for sandboxes to hide."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.base import local_servers
from holdfast.base.local_servers import (
    Listed,
    Reachable,
    UnusableRuntimeDirectory,
    find_token,
    hide,
    list_server,
    make_runtime_directories,
    reachable,
    runtime_directory,
)

Environ = dict[str, str]

ACCOUNT = [""]
"""The home of the user in the user database."""


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Environ:
    # No other server of the user who runs the tests is to be seen.
    account = tmp_path / "account"
    account.mkdir(0o700)
    monkeypatch.setattr(local_servers, "database_home", lambda: ACCOUNT[-1])
    ACCOUNT[-1] = str(account)
    runtime = tmp_path / "runtime"
    runtime.mkdir(0o700)
    return {"XDG_RUNTIME_DIR": str(runtime), "HOME": str(tmp_path / "home")}


def secrets(environ: Environ) -> tuple[str, ...]:
    """The folders that are hidden whatever is in them: those of all variables, if they exist."""
    others = [{**environ, "XDG_RUNTIME_DIR": base} for base in ("", f"/run/user/{os.geteuid()}")]
    host = os.uname().nodename
    homes = (environ["HOME"], ACCOUNT[-1])
    below = {f"{home}/.local/state/holdfast/run-{host}" for home in homes}
    return tuple(sorted(below.union(map(runtime_directory, [environ, *others]))))


@pytest.fixture
def listed(environ: Environ) -> Iterator[Listed]:
    server = list_server("ws://127.0.0.1:4500", environ, token="the-token")
    yield server
    server.remove()


@pytest.mark.requirement("security.token.found")
@pytest.mark.usefixtures("listed")
@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("ws://127.0.0.1:4500", True),
        ("ws://127.0.0.1:4500/?x=1", True),
        ("wss://localhost:4500", True),
        ("ws://LOCALHOST:4500/", True),
        ("ws://127.0.0.1:4501", False),
        ("ws://[::1]:4500", False),
        ("ws://127.0.0.1:4500@elsewhere.example", False),
        ("wss://127.0.0.1:4500:443", False),
        ("ws://me@127.0.0.1:4500", False),
        ("ws://127.0.0.1", False),
        ("unix:///127.0.0.1:4500", False),
    ],
)
def test_a_token_is_found_by_the_address_of_its_server(
    environ: Environ, url: str, found: bool
) -> None:
    assert find_token(url, environ) == ("the-token" if found else None)


@pytest.mark.requirement("security.token.private")
def test_a_server_from_before_the_login_is_found(environ: Environ) -> None:
    at_boot = {name: value for name, value in environ.items() if name != "XDG_RUNTIME_DIR"}
    with pytest.raises(UnusableRuntimeDirectory, match="No such file or directory"):
        list_server("ws://127.0.0.1:4500", at_boot)  # there is no such home
    Path(at_boot["HOME"]).mkdir()
    server = list_server("ws://127.0.0.1:4500", at_boot, token="t")
    assert find_token("ws://127.0.0.1:4500", environ) == "t"
    assert runtime_directory(at_boot) in reachable(environ).secrets
    server.remove()


def test_a_server_on_all_addresses_is_found_on_loopback_only(environ: Environ) -> None:
    for url in ("ws://0.0.0.0:4500", "ws://[::]:4500"):
        server = list_server(url, environ, token="t")
        assert find_token("ws://127.0.0.1:4500", environ) == "t"
        assert find_token("ws://[::1]:4500", environ) == "t"
        assert find_token("wss://192.0.2.1:4500", environ) is None
        server.remove()


@pytest.mark.requirement("security.token.private")
def test_what_is_written_down_is_only_the_users_and_goes_with_the_server(
    environ: Environ, listed: Listed
) -> None:
    folder = Path(runtime_directory(environ))
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600
    other = list_server("ws://127.0.0.1:4501", environ, token="t")  # spares those that live
    other.remove()
    assert list(folder.iterdir()) == [file]


def test_a_file_of_a_server_that_was_killed_is_removed_by_the_next(environ: Environ) -> None:
    pid = os.fork()
    if pid == 0:
        list_server("ws://127.0.0.1:4500", environ, token="old")
        os._exit(0)
    os.waitpid(pid, 0)
    (left,) = Path(runtime_directory(environ)).iterdir()
    # Another user may listen there by now, and is shown nothing.
    assert find_token("ws://127.0.0.1:4500", environ) is None
    list_server("ws://127.0.0.1:4501", environ, token="new").remove()
    assert not left.exists()


def test_the_server_that_came_last_to_an_address_has_it(environ: Environ) -> None:
    first = list_server("ws://127.0.0.1:4500", environ, token="first")
    second = list_server("ws://127.0.0.1:4500", environ, token="second")
    first.remove()
    assert find_token("ws://127.0.0.1:4500", environ) == "second"
    second.remove()
    assert find_token("ws://127.0.0.1:4500", environ) is None


@pytest.mark.requirement("security.token.private")
@pytest.mark.parametrize("trouble", ["mode", "link", "file", "other user"])
def test_a_folder_that_is_not_only_the_users_is_refused(environ: Environ, trouble: str) -> None:
    folder = Path(runtime_directory(environ))
    if trouble == "link":
        folder.symlink_to(folder.parent)
    elif trouble == "file":
        folder.touch()
    else:
        folder.mkdir(0o700)
        if trouble == "mode":
            folder.chmod(0o755)
        elif os.geteuid() == 0:
            os.chown(folder, 12345, 12345)
        else:
            pytest.skip("only root can give a folder away")
    with pytest.raises(UnusableRuntimeDirectory, match=str(folder)):
        list_server("ws://127.0.0.1:4500", environ, token="t")


def test_a_runtime_directory_of_somebody_else_is_not_used(environ: Environ) -> None:
    Path(environ["XDG_RUNTIME_DIR"]).chmod(0o777)
    assert not runtime_directory(environ).startswith(environ["XDG_RUNTIME_DIR"])


def test_a_token_in_a_file_of_its_own_is_read_by_the_rules_of_such_files(
    environ: Environ, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text("alice first\nalice second\n")
    server = list_server("ws://127.0.0.1:4500", environ, token_file=str(file))
    assert find_token("ws://127.0.0.1:4500", environ) == "first"
    assert str(file) in reachable(environ).secrets
    server.remove()


def test_sandboxes_are_told_of_all_servers(environ: Environ, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        servers = [
            list_server(f"unix://{path}", environ),
            list_server("ws://127.0.0.1:4500", environ, is_open=True),
        ]
        mine = Reachable(("/my/secret",), ("/my/socket",), ("ws://mine",))
        with hide(mine):
            assert reachable(environ) == Reachable(
                tuple(sorted(("/my/secret", *secrets(environ)))),
                tuple(sorted(("/my/socket", str(path)))),
                ("ws://127.0.0.1:4500", "ws://mine"),
            )
        for server in servers:
            server.remove()
    assert reachable(environ) == Reachable(secrets(environ))


@pytest.mark.parametrize("text", ["", "[]", "{", '{"url": 1, "secrets": {}}', '{"token": 5}'])
def test_what_makes_no_sense_is_passed_over(environ: Environ, listed: Listed, text: str) -> None:
    (file,) = Path(runtime_directory(environ)).iterdir()
    file.write_text(text)
    assert find_token("ws://127.0.0.1:4500", environ) is None
    assert reachable(environ).secrets == secrets(environ)


def test_nobody_has_folders_denied_by_what_is_written_down(
    environ: Environ, listed: Listed, tmp_path: Path
) -> None:
    (file,) = Path(runtime_directory(environ)).iterdir()
    about = {"url": f"unix://{tmp_path}", "secrets": [str(tmp_path), "relative", "/nul\0"]}
    file.write_text(json.dumps(about))
    assert reachable(environ) == Reachable(secrets(environ))


def test_a_server_in_an_unusual_directory_is_found_by_all_others(
    environ: Environ, tmp_path: Path
) -> None:
    (tmp_path / "theirs").mkdir(0o700)
    theirs = {"XDG_RUNTIME_DIR": str(tmp_path / "theirs"), "HOME": "/nonexistent"}
    key = tmp_path / "key"
    key.touch()
    server = list_server("ws://127.0.0.1:4500", theirs, secrets=(str(key),), is_open=True)
    found = reachable(environ)
    assert {runtime_directory(theirs), str(key)} <= set(found.secrets)
    assert found.open_urls == ("ws://127.0.0.1:4500",)
    server.remove()
    assert reachable(environ) == Reachable(secrets(environ))


def test_all_directories_of_a_user_are_read(environ: Environ) -> None:
    Path(environ["HOME"]).mkdir()
    at_boot = {"HOME": environ["HOME"]}
    server = list_server("ws://127.0.0.1:4500", at_boot, is_open=True)
    assert reachable(environ).open_urls == ("ws://127.0.0.1:4500",)
    server.remove()


def test_directories_of_other_variables_are_read_as_well(environ: Environ, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir(0o700)
    theirs = {"XDG_RUNTIME_DIR": str(other)}
    assert f"{other}/holdfast" not in reachable(environ).secrets
    assert f"{other}/holdfast" in reachable(environ, theirs).secrets


@pytest.mark.parametrize("kind", ["certbot", "kubernetes"])
@pytest.mark.parametrize("listed", [False, True])
def test_links_to_secrets_are_followed_when_they_change(
    environ: Environ, tmp_path: Path, kind: str, listed: bool
) -> None:
    keys = [tmp_path / "1" / "key", tmp_path / "2" / "key"]
    for key in keys:
        key.parent.mkdir()
        key.touch()
    link = tmp_path / "live"
    # The file is a link, or a directory above it.
    named = link if kind == "certbot" else link / "key"
    link.symlink_to(keys[0] if kind == "certbot" else keys[0].parent)
    with ExitStack() as stack:
        if listed:
            server = list_server("ws://127.0.0.1:4500", environ, secrets=(str(named),))
            stack.callback(server.remove)
        else:
            stack.enter_context(hide(Reachable((str(named),))))
        assert str(keys[0]) in reachable(environ).secrets
        link.unlink()
        # Not there for a moment: what was used before stays hidden.
        assert str(keys[0]) in reachable(environ).secrets
        link.symlink_to(keys[1] if kind == "certbot" else keys[1].parent)
        assert set(map(str, keys)) <= set(reachable(environ).secrets)


@pytest.mark.requirement("security.servers.replaced")
def test_a_directory_for_secrets_alone_is_hidden_with_them(
    environ: Environ, tmp_path: Path
) -> None:
    folder, real, home = tmp_path / "folder", tmp_path / "real", Path(environ["HOME"])
    for each in (folder, real):
        each.mkdir()
        (each / "key").touch()
    home.symlink_to(real)
    (folder / "link").symlink_to(home / "key")
    with hide(Reachable((str(folder / "key"), str(home / "key"), str(folder / "token")))):
        # A link is not one of them, nor a directory.
        assert reachable(environ).settings == ()
        (folder / "link").unlink()
        (folder / "token").mkdir()
        assert reachable(environ).settings == ()
        (folder / "token").rmdir()
        # Commands need a home.
        assert reachable(environ).settings == (str(folder),)
        (folder / "token").touch()
        assert reachable(environ).settings == (str(folder),)
        # Others put their files there, and commands do, too.
        folder.chmod(0o1777)
        assert reachable(environ).settings == ()
        folder.chmod(0o755)
        (folder / "other").touch()
        assert reachable(environ).settings == ()


def test_the_directories_of_servers_are_made_before_one_starts(environ: Environ) -> None:
    Path(environ["HOME"]).mkdir()
    make_runtime_directories(environ)
    for path in secrets(environ):
        if not path.startswith("/run/"):
            assert Path(path).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("path", ["/", "relative", "/nul\0", "{tmp_path}"])
def test_a_pointer_to_a_directory_that_is_no_servers_is_ignored(
    environ: Environ, tmp_path: Path, path: str
) -> None:
    tmp_path.chmod(0o755)
    server = list_server("ws://127.0.0.1:4500", {"HOME": ACCOUNT[-1]})
    Path(server.path).write_text(json.dumps({"folder": path.format(tmp_path=tmp_path)}))
    assert reachable(environ) == Reachable(secrets(environ))
    server.remove()
