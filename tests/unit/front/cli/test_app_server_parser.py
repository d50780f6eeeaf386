"""The options of `holdfast app-server`."""

import pytest

from holdfast.front.cli.parser import make_parser

pytestmark = pytest.mark.requirement("app-server.profiles")


def test_everything_has_a_default() -> None:
    options = make_parser().parse_args(["app-server"])
    assert (options.listen, options.sandbox, options.profile) == ("stdio", "read-only", [])
    assert (options.environment, options.compat, options.concurrent_requests) == (None, None, None)


def test_profiles_have_names() -> None:
    arguments = ["app-server", "--profile", "a=x.toml", "--profile", "b=y=z.toml"]
    options = make_parser().parse_args(arguments)
    assert options.profile == [("a", "x.toml"), ("b", "y=z.toml")]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--profile", "x"], "expected NAME=FILE, not 'x'"),
        (["--profile", "=x"], "expected NAME=FILE, not '=x'"),
        (["--profile", "x="], "expected NAME=FILE, not 'x='"),
        (["--profile", ":x=y"], "such names belong to built-in profiles"),
        (["--compat", "codex-0.1"], "invalid choice 'codex-0.1'"),
        (["--concurrent-requests", "0"], "must be at least 1"),
        (["--idle-exit", "0"], "must be more than 0"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        make_parser().parse_args(["app-server", *arguments])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err
