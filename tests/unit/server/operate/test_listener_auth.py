"""Clients that a listener lets in, from the options of a server."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.base.local_servers import UnusableRuntimeDirectory
from holdfast.base.token_file import new_token
from holdfast.server.listen import ListenUrl, parse_listen_url
from holdfast.server.operate.auth import AuthOptions, BadAuthOptions, Unauthorized
from holdfast.server.operate.listener_auth import (
    BadListenerAuth,
    ListenerAuth,
    ListenerAuthOptions,
    make_listener_auth,
)
from holdfast.wire.transports.tls import BadCertificate

PEM = Path(__file__).parents[2] / "engine" / "http" / "localhost.pem"
NO_AUTH = AuthOptions()
LOOPBACK = "ws://127.0.0.1:0"
NETWORK = "ws://0.0.0.0:0"
HTTP = "http://127.0.0.1:0"


def listener_auth(
    listen: str = LOOPBACK, auth: AuthOptions = NO_AUTH, *, makes_token: bool = True, **options: Any
) -> ListenerAuth:
    given = ListenerAuthOptions(makes_token=makes_token, **options)
    return make_listener_auth(given, auth, [parse_listen_url(listen)])


def refusal(listen: str = LOOPBACK, **options: Any) -> str:
    with pytest.raises(BadListenerAuth) as caught:
        listener_auth(listen, **options)
    return str(caught.value)


def test_what_contradicts_itself_is_refused(tmp_path: Path) -> None:
    token = {"token_file": str(tmp_path / "token")}
    signed = AuthOptions(mode="capability-token", token_sha256="0" * 64)
    assert refusal(auth=signed, **token) == "--token-file and --ws-auth are mutually exclusive"
    assert refusal(no_auth=True, **token) == "--token-file and --no-auth are mutually exclusive"
    assert "--token-file is for a listener on ws://" in refusal("unix:///x", **token)
    assert "use `--insecure-no-auth`" in refusal(NETWORK, no_auth=True)
    assert "add `--ws-auth …`" in refusal(NETWORK, makes_token=False)
    assert refusal(tls_cert="x") == "--tls-cert and --tls-key must be used together"
    assert refusal(tls_key="x") == "--tls-cert and --tls-key must be used together"
    tls = {"tls_cert": "/no/cert", "tls_key": "/no/key"}
    assert refusal(**tls) == "cannot read /no/cert: No such file or directory (os error 2)"
    assert "--tls-cert is for a listener on ws://" in refusal("unix:///x", **tls)
    assert not (tmp_path / "token").exists()


def test_a_socket_file_from_systemd_needs_neither_token_nor_certificate(tmp_path: Path) -> None:
    paths: dict[str, Any] = {
        name: str(tmp_path / name) for name in ("token_file", "tls_cert", "tls_key")
    }
    file = ListenUrl("unix", path="/x", descriptor=3)
    options = ListenerAuthOptions(makes_token=True, **paths)
    made = make_listener_auth(options, NO_AUTH, [file])
    assert (made.check, made.tls, list(made.parts())) == (None, None, [])
    assert [text.partition(":")[0] for text in made.warnings] == [
        "--token-file is ignored",
        "--tls-cert is ignored",
    ]
    assert made.hidden.secrets == (paths["token_file"], paths["tls_key"])
    assert not list(tmp_path.iterdir())


@pytest.mark.requirement("security.token-file.made", "security.token-file.refused")
def test_a_token_file_is_made_or_refused(tmp_path: Path) -> None:
    made = tmp_path / "made"
    assert listener_auth(token_file=str(made)).check is not None
    assert made.stat().st_mode & 0o777 == 0o600
    link = tmp_path / "link"
    link.symlink_to(made)
    assert "it is a symbolic link" in refusal(token_file=str(link))
    made.chmod(0o644)
    assert "others can read it" in refusal(token_file=str(made))
    assert "it cannot be created" in refusal(token_file=str(tmp_path / "missing" / "token"))
    short = tmp_path / "short"
    short.touch(0o600)
    short.write_text("ci sixteen-letters-at-least\nci not-so-many\n")
    assert "the token of `ci` has fewer than 16 characters" in refusal(token_file=str(short))


@pytest.mark.requirement("security.token.needed")
def test_a_listener_is_open_only_if_it_was_told_to_be() -> None:
    assert listener_auth().check is not None
    assert listener_auth(NETWORK).check is not None
    for listen, option in (
        (LOOPBACK, "no_auth"),
        (LOOPBACK, "insecure_no_auth"),
        (NETWORK, "insecure_no_auth"),
    ):
        opened = listener_auth(listen, NO_AUTH, **{option: True})
        assert opened.check is None
        (warning,) = opened.warnings
        assert warning.startswith("this server requires no token")
    # As Codex: on loopback without a word.
    assert listener_auth(makes_token=False).check is None
    assert listener_auth(makes_token=False).warnings == ()
    # There the mode of the file is the lock.
    assert listener_auth("unix:///x").check is None
    assert listener_auth("unix:///x").warnings == ()


@pytest.mark.requirement("security.token.made")
def test_a_server_of_http_is_no_exception() -> None:
    made = make_listener_auth(
        ListenerAuthOptions(makes_token=True),
        AuthOptions(),
        [parse_listen_url(HTTP, scheme="http")],
    )
    assert made.made_token
    assert made.check is not None


def test_tokens_in_the_clear_on_the_network_are_worth_a_warning() -> None:
    assert listener_auth().warnings == ()
    (warning,) = listener_auth(NETWORK).warnings
    assert "unencrypted" in warning


@pytest.mark.requirement("security.token.made")
def test_each_server_has_a_token_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[str] = []

    def noted() -> str:
        tokens.append(new_token())
        return tokens[-1]

    monkeypatch.setattr("holdfast.server.operate.listener_auth.new_token", noted)
    first, second = listener_auth().check, listener_auth().check
    assert [len(bytes.fromhex(token)) for token in tokens] == [32, 32]
    assert first is not None
    assert second is not None
    first(f"Bearer {tokens[0]}")
    second(f"Bearer {tokens[1]}")
    for check, token in ((first, tokens[1]), (second, tokens[0])):
        with pytest.raises(Unauthorized):
            check(f"Bearer {token}")
    check = first
    for header in (None, "Bearer x", "Basic x"):
        with pytest.raises(Unauthorized):
            check(header)


@pytest.mark.requirement("security.servers.options")
def test_files_of_secrets_are_named_to_sandboxes(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of 32 letters, at the least")
    for auth in (
        AuthOptions(mode="capability-token", token_file=str(secret)),
        AuthOptions(mode="signed-bearer-token", shared_secret_file=str(secret)),
    ):
        assert listener_auth(auth=auth).hidden.secrets == (str(secret),)
    tokens = str(tmp_path / "tokens")
    assert listener_auth(token_file=tokens).hidden.secrets == (tokens,)
    key = tmp_path / "key.pem"
    shutil.copy(PEM, key)
    key.chmod(0o600)
    assert listener_auth(tls_cert=str(PEM), tls_key=str(key)).hidden.secrets == (str(key),)


def test_without_a_place_for_its_token_a_server_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "holdfast").touch()
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)
    where = parse_listen_url(LOOPBACK)
    with pytest.raises(
        UnusableRuntimeDirectory, match=f"cannot use the directory {tmp_path}/holdfast"
    ):
        listener_auth().write_down(where, "ws://127.0.0.1:1", environ)
    # Others only lose that they are found.
    assert listener_auth(no_auth=True).write_down(where, "ws://127.0.0.1:1", environ) is None


@pytest.mark.requirement("security.token-file.names")
def test_names_of_tokens_are_principals(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch(0o600)
    file.write_text("ci first-token-of-ci\nci other-token-of-ci\ntoken-of-nobody-special\n")
    made = listener_auth(token_file=str(file))
    assert made.check is not None
    assert made.check("Bearer first-token-of-ci").principal == "ci"
    assert made.check("Bearer other-token-of-ci").principal == "ci"
    assert made.check("bearer token-of-nobody-special").principal == "default"
    with pytest.raises(Unauthorized):
        made.check("Bearer ci")
    assert str(file) in made.hidden.secrets


@pytest.mark.requirement("auth.secret.pipe")
def test_a_secret_may_come_from_a_pipe_which_is_read_once() -> None:
    reader, writer = os.pipe()
    try:
        path = f"/dev/fd/{reader}"
        os.write(writer, b"the secret\n")
        os.close(writer)
        auth = AuthOptions(mode="capability-token", token_file=path)
        made = listener_auth(auth=auth)
        assert made.check is not None
        assert made.check("Bearer the secret")
        # There is nothing to hide, and sandboxes could not hide it.
        assert made.hidden.secrets == ()
        ((_, read),) = made.parts()
        with pytest.raises(BadAuthOptions) as caught:
            read()
        assert str(caught.value) == (
            f"failed to read websocket auth secret {path}:"
            " it is a pipe, which can be read only once"
        )
        assert made.check("Bearer the secret")
        # At another start it is empty.
        assert "must not be empty" in refusal(auth=auth)
    finally:
        os.close(reader)


@pytest.mark.requirement("auth.secret.regular")
def test_a_certificate_and_its_key_are_regular_files(tmp_path: Path) -> None:
    key, fifo = tmp_path / "key", tmp_path / "fifo"
    shutil.copy(PEM, key)
    key.chmod(0o600)
    os.mkfifo(fifo, 0o600)
    said = f"cannot read {fifo}: it is not a regular file"
    assert refusal(tls_cert=str(fifo), tls_key=str(key)) == said
    assert refusal(tls_cert=str(key), tls_key=str(fifo)) == said
    made = listener_auth(tls_cert=str(key), tls_key=str(key), no_auth=True)
    fifo.rename(key)
    ((_, read),) = made.parts()
    with pytest.raises(BadCertificate, match=f"cannot read {key}: it is not a regular file"):
        read()
