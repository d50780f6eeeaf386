"""The config file of `holdfast serve`."""

import argparse
import tomllib
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from holdfast.base.errors import InvalidConfig
from holdfast.front.cli.parser import make_parser
from holdfast.front.cli.server_config import with_config

ROOT = Path(__file__).parents[4]


@cache
def whole_parser() -> argparse.ArgumentParser:
    return make_parser()


def serve_parser(name: str = "serve") -> argparse.ArgumentParser:
    (commands,) = (
        action
        for action in whole_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    found = commands.choices[name]
    assert isinstance(found, argparse.ArgumentParser)
    return found


def configured(*arguments: str) -> argparse.Namespace:
    options = whole_parser().parse_args(["serve", *arguments])
    options.arguments = ["serve", *arguments]
    return with_config(options, serve_parser())


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "server.toml"


def test_the_file_says_what_the_command_line_does_not(config: Path, tmp_path: Path) -> None:
    config.write_text(
        'listen = "ws://127.0.0.1:4500"\nws-token-file = "token"\nconcurrent-requests = 7\n'
        'insecure-no-auth = true\nidle-exit = 1.5\naudit-log-max-size = "1M"\nlog-level = "info"\n'
    )
    found = configured("--config", str(config), "--log-level", "debug")
    assert found.listen == "ws://127.0.0.1:4500"
    assert found.ws_token_file == str(tmp_path / "token")
    assert (found.concurrent_requests, found.idle_exit) == (7, 1.5)
    assert found.audit_log_max_size == 1 << 20
    assert found.insecure_no_auth is True
    assert found.log_level == "debug"  # the flag wins
    assert found.audit_log is None


def test_a_flag_wins_even_with_the_value_it_has_anyway(config: Path) -> None:
    config.write_text('listen = "ws://127.0.0.1:4500"\nlog-format = "json"\n')
    found = configured(
        "--config", str(config), "--listen", "ws://127.0.0.1:0", "--log-format", "text"
    )
    assert (found.listen, found.log_format) == ("ws://127.0.0.1:0", "text")


def test_a_server_listens_at_each_address_of_a_list(config: Path) -> None:
    config.write_text('listen = ["ws://127.0.0.1:1", "unix:///a", "unix:///b"]\n')
    found = configured("--config", str(config))
    assert (found.listen, found.also_listen) == ("ws://127.0.0.1:1", ("unix:///a", "unix:///b"))
    # The command line replaces the whole list.
    found = configured("--config", str(config), "--listen", "ws://[::1]:2")
    assert (found.listen, found.also_listen) == ("ws://[::1]:2", ())
    given = ("--listen", "unix:///c", "--listen", "unix:///d")
    found = configured(*given, "--config", str(config))
    assert (found.listen, found.also_listen) == ("unix:///c", ("unix:///d",))


def test_every_option_can_be_in_the_file(config: Path) -> None:
    names = [
        (name, action)
        for action in serve_parser()._actions
        for name in action.option_strings
        if name.startswith("--") and name not in ("--help", "--config")
    ]
    assert len(names) > 15
    for name, action in names:
        choices = list(action.choices or ())
        values = ["true"] if action.nargs == 0 else [f'"{c}"' for c in choices] or ['"x"', "70000"]
        accepted = []
        for value in values:
            config.write_text(f"{name.removeprefix('--')} = {value}\n")
            with suppress(InvalidConfig):
                configured("--config", str(config))
                accepted.append(value)
        assert accepted, name


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ('lisen = "x"', "unknown option `lisen`; did you mean `listen`?"),
        ('audit_log = "x"', "unknown option `audit_log`; did you mean `audit-log`?"),
        ("zzz = 1", "unknown option `zzz`"),
        ("[listen]\na = 1", "listen: expected a string or a number, not a table"),
        ("listen = 1", "listen: expected a string, not a number"),
        ("listen = []", "listen: the list is empty"),
        ('listen = ["a", 1]', "listen: expected a string, not a number"),
        ('listen = [["a"]]', "listen: expected a string or a number, not a list"),
        ('log-level = ["info"]', "log-level: expected a string or a number, not a list"),
        ("listen = 2020-01-01", "listen: expected a string or a number, not a date or a time"),
        ('insecure-no-auth = "yes"', "insecure-no-auth: expected true or false, not a string"),
        ("log-level = true", "log-level: expected a string or a number, not true or false"),
        ('log-level = "loud"', "log-level: expected error or warning or info or debug, not 'loud'"),
        ("concurrent-requests = 0", "concurrent-requests: must be at least 1"),
        (
            'concurrent-requests = "many"',
            "concurrent-requests: expected a whole number, not 'many'",
        ),
        ("audit-log-max-size = 10", "audit-log-max-size: must be at least 64K"),
        ('audit-log = "a\\u0000b"', "audit-log: NUL is not allowed"),
        ('config = "x"', "unknown option `config`"),
        ('listen = "a"\nlisten = "b"', "Cannot overwrite a value"),
        ("listen = ", "Invalid value"),
        ("a = " + "[" * 20_000, ""),
    ],
)
def test_mistakes_are_named(config: Path, content: str, text: str) -> None:
    config.write_text(content)
    with pytest.raises(InvalidConfig, match=r"server\.toml: ") as caught:
        configured("--config", str(config))
    assert text in str(caught.value)


def test_what_cannot_be_read_is_named(config: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"cannot read .*server\.toml: No such file"):
        configured("--config", str(config))
    with pytest.raises(InvalidConfig, match=f"cannot read {tmp_path}: Is a directory"):
        configured("--config", str(tmp_path))
    config.write_bytes(b"listen = '\xff'")
    with pytest.raises(InvalidConfig, match="is not UTF-8 text"):
        configured("--config", str(config))
    config.write_bytes(b"#" * (2 << 20))
    with pytest.raises(InvalidConfig, match="it has more than 1,048,576 bytes"):
        configured("--config", str(config))


def test_the_file_of_the_machine_is_for_servers_that_others_reach(config: Path) -> None:
    config.write_text('log-level = "debug"\n')

    def level(*arguments: str) -> str | None:
        options = make_parser().parse_args(["serve", *arguments])
        options.arguments = ["serve", *arguments]
        options.default_config = str(config)
        found: str | None = with_config(options, serve_parser()).log_level
        return found

    assert level() == "debug"
    assert level("--config", "/dev/null") is None
    assert level("--listen", "stdio") is None
    assert level("--listen", "stdio", "--keep") is None
    assert make_parser().parse_args(["serve"]).default_config == "/etc/holdfast/server.toml"
    assert make_parser().parse_args(["exec-server"]).default_config is None


def test_the_file_to_begin_with_is_one() -> None:
    sample = ROOT / "packaging" / "server.toml"
    found = configured("--config", str(sample))
    assert found.audit_log == "/var/log/holdfast/audit.jsonl"
    assert found.token_file == str(ROOT / "packaging" / "token")
    assert len(tomllib.loads(sample.read_text())) >= 7
