"""`holdfast policy check`."""

from pathlib import Path

import pytest

from holdfast.front.cli.__main__ import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(["policy", "check", *arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    (tmp_path / "a.rules").write_text("prefix_rule(['git', 'é'], 'prompt', justification='why')")
    (tmp_path / "b.rules").write_text("prefix_rule([])")
    return tmp_path


def test_the_answer_is_the_json_of_the_original(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["-r", "a.rules", "--resolve-host-executables"]
    assert run(capsys, *options, "--", "/bin/git", "é", "--pretty") == (
        0,
        '{"matchedRules":[{"prefixRuleMatch":{"matchedPrefix":["git","é"],"decision":"prompt",'
        '"resolvedProgram":"/bin/git","justification":"why"}}],"decision":"prompt"}\n',
        "",
    )
    assert run(capsys, "--rules", "a.rules", "/bin/git", "é") == (0, '{"matchedRules":[]}\n', "")
    pretty = run(capsys, "--rules", "a.rules", "--pretty", "ls")[1]
    assert pretty == '{\n  "matchedRules": []\n}\n'


def test_an_error_of_a_named_file_is_that_of_the_original(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = run(capsys, "--rules", "a.rules", "--rules", "b.rules", "git")
    assert (status, out) == (1, "")
    assert err.startswith(
        "Error: failed to parse policy at b.rules\n\nCaused by:\n"
        "    starlark error: Traceback (most recent call last):\n"
        "      * b.rules:1, in <module>\n"
    )
    assert run(capsys, "--rules", "no.rules", "git") == (
        1,
        "",
        "Error: failed to read policy at no.rules\n\nCaused by:\n"
        "    No such file or directory (os error 2)\n",
    )


def test_without_files_the_layers_are_used_and_broken_ones_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "git") == (0, '{"matchedRules":[]}\n', "")
    for folder in ("home/rules", ".holdfast/rules"):
        (here / folder).mkdir(parents=True)
    (here / "home/rules/a.rules").write_text("prefix_rule(['git'])")
    (here / ".holdfast/rules/b.rules").write_text("prefix_rule(['git'], 'forbidden')")
    assert run(capsys, "git")[1].endswith('"decision":"forbidden"}\n')
    (here / "home/rules/c.rules").write_text("x")
    status, out, err = run(capsys, "git")
    assert status == 1
    assert out.endswith('"decision":"forbidden"}\n')
    assert err.startswith(f"holdfast: rules file ignored: {here}/home/rules/c.rules: Variable `x`")


def test_a_command_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["policy", "check", "--rules", "a.rules"])
    assert ended.value.code == 2
    assert "the command to check is missing" in capsys.readouterr().err
