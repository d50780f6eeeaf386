"""`environmentConfig/read`; the expectations were seen on the real server."""

import os
import socket
import tomllib
from datetime import UTC
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.codex.executor_config import (
    NOT_FOR_PROJECTS,
    ConfigLoadError,
    SelectorError,
    executor_hostname,
    read_executor_config,
)
from holdfast.codex.toml_text import spell_toml
from holdfast.wire.protocol.environment import ConfigReadResponse

LOAD = "failed to load executor-local config: "


class Machine:
    """A home, a system folder and a project, all in one temporary folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {"HOME": str(folder / "home")}
        self.user = self.write("home/.codex/config.toml", "")
        self.project = folder / "project"
        self.write("project/.git/HEAD", "ref: refs/heads/main\n")

    def write(self, name: str, text: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def trust(self, *folders: Path, level: str = "trusted", extra: str = "") -> None:
        entries = [f'[projects."{folder}"]\ntrust_level = "{level}"\n' for folder in folders]
        self.user.write_text(extra + "".join(entries))

    def read(
        self,
        *config: list[str],
        requirements: tuple[list[str], ...] = (),
        cwd: str | Path | None = None,
    ) -> ConfigReadResponse:
        return read_executor_config(
            str(cwd or self.project),
            config,
            requirements,
            environ=self.environ,
            home=None,
            hostname="host",
            system_directory=str(self.folder / "etc"),
        )

    def layers(self, cwd: Path | None = None, *, key: str = "model") -> list[tuple[str, object]]:
        """The sources of the layers with a key, each with the kind only, and its text."""
        return [
            (layer.source.replace(str(self.folder), ""), layer.toml)
            for layer in self.read([key], cwd=cwd).config.layers
        ]

    def refusal(self, cwd: Path | None = None) -> str:
        with pytest.raises(ConfigLoadError) as caught:
            self.read(["model"], cwd=cwd)
        return str(caught.value).replace(str(self.folder), "")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_without_files_answers_with_empty_stacks(machine: Machine) -> None:
    machine.user.unlink()
    answer = machine.read(["model"])
    assert answer.user_home_dir == f"file://{machine.folder}/home"
    assert answer.codex_home_dir == f"file://{machine.folder}/home/.codex"
    assert answer.hostname == "host"
    assert answer.config == answer.requirements
    assert answer.config.layers == []
    assert answer.config.cloud_insertion_index == 0


def test_a_request_must_select_something(machine: Machine) -> None:
    with pytest.raises(SelectorError, match=r"^at least one config or requirements path is requ"):
        machine.read()
    with pytest.raises(SelectorError, match=r"^TOML paths must contain at least one key segment$"):
        machine.read(["a"], requirements=([],))


def test_layers_come_from_the_lowest_precedence_to_the_highest(machine: Machine) -> None:
    machine.write("etc/config.toml", "model = 1")
    machine.trust(machine.project, extra="model = 2\n")
    machine.write("project/.codex/config.toml", "model = 3")
    machine.write("project/sub/deep/.codex/config.toml", "model = 4")
    machine.write("etc/managed_config.toml", "model = 5")
    assert machine.layers(machine.project / "sub/deep") == [
        ("system (/etc/config.toml)", "model = 1\n"),
        ("user (/home/.codex/config.toml)", "model = 2\n"),
        ("project (/project/.codex/config.toml)", "model = 3\n"),
        ("project (/project/sub/deep/.codex/config.toml)", "model = 4\n"),
        ("legacy managed_config.toml (/etc/managed_config.toml)", "model = 5\n"),
    ]
    stack = machine.read(["model"]).config
    assert stack.cloud_insertion_index == 1
    assert [layer.base_dir for layer in stack.layers[:3]] == [
        f"file://{machine.folder}/{name}" for name in ("etc", "home/.codex", "project/.codex")
    ]


def test_the_cloud_goes_above_the_system_layer_only_if_that_is_shown(machine: Machine) -> None:
    machine.write("etc/config.toml", "other = 1")
    machine.user.write_text("model = 1")
    assert machine.read(["model"]).config.cloud_insertion_index == 0
    assert machine.read(["other"]).config.cloud_insertion_index == 1


def test_a_folder_without_a_file_of_ours_is_no_layer(machine: Machine) -> None:
    machine.trust(machine.project)
    (machine.project / ".codex").mkdir()
    assert machine.layers() == []


def test_a_missing_cwd_belongs_to_the_project_above_it(machine: Machine) -> None:
    machine.trust(machine.project)
    machine.write("project/.codex/config.toml", "model = 1")
    assert len(machine.layers(machine.project / "no/such")) == 1


# Trust.


def test_without_a_word_of_trust_a_project_adds_nothing_not_even_errors(machine: Machine) -> None:
    machine.write("project/.codex/config.toml", "model = ")
    assert machine.layers() == []
    machine.trust(machine.project, level="untrusted")
    assert machine.layers() == []
    machine.user.write_text(f'[projects."{machine.project}"]\n')
    assert machine.layers() == []


def test_the_nearest_entry_decides_for_each_folder(machine: Machine) -> None:
    for name in ("project", "project/sub", "project/sub/deep"):
        machine.write(f"{name}/.codex/config.toml", "model = 1")
    deep = machine.project / "sub/deep"
    machine.trust(machine.project / "sub")
    assert [source for source, _ in machine.layers(deep)] == [
        "project (/project/sub/.codex/config.toml)"
    ]
    machine.trust(machine.project)
    with machine.user.open("a") as config:
        config.write(f'[projects."{deep}"]\ntrust_level = "untrusted"\n')
    assert [source for source, _ in machine.layers(deep)] == [
        "project (/project/.codex/config.toml)",
        "project (/project/sub/.codex/config.toml)",
    ]


def test_a_folder_above_the_project_lends_it_no_trust(machine: Machine) -> None:
    machine.write("project/.codex/config.toml", "model = 1")
    machine.trust(machine.folder)
    assert machine.layers() == []


def test_trust_in_a_folder_covers_links_to_it_but_not_the_reverse(machine: Machine) -> None:
    machine.write("project/.codex/config.toml", "model = 1")
    link = machine.folder / "link"
    link.symlink_to(machine.project)
    machine.trust(machine.project)
    assert machine.layers(link) == [("project (/link/.codex/config.toml)", "model = 1\n")]
    machine.trust(link)
    assert len(machine.layers(link)) == 1
    assert machine.layers(machine.project) == []


@pytest.mark.parametrize("file", ["etc/config.toml", "etc/managed_config.toml"])
def test_the_system_may_trust_as_well(machine: Machine, file: str) -> None:
    machine.write("project/.codex/config.toml", "model = 1")
    machine.write(file, f'[projects."{machine.project}"]\ntrust_level = "trusted"\n')
    assert len(machine.layers()) == 1


def test_a_managed_file_overrules_the_user(machine: Machine) -> None:
    machine.write("project/.codex/config.toml", "model = 1")
    machine.trust(machine.project)
    machine.write(
        "etc/managed_config.toml", f'[projects."{machine.project}"]\ntrust_level = "untrusted"\n'
    )
    assert machine.layers() == []


def test_a_project_may_not_redirect_data_or_run_programs(machine: Machine) -> None:
    machine.trust(machine.project)
    names = sorted(NOT_FOR_PROJECTS)
    machine.write("project/.codex/config.toml", "".join(f"{name} = 1\n" for name in names))
    assert machine.read(*([name] for name in names)).config.layers == []


def test_the_codex_home_is_no_project_layer(machine: Machine) -> None:
    home = machine.folder / "home"
    machine.trust(home, extra="model = 1\n")
    assert [source for source, _ in machine.layers(home)] == ["user (/home/.codex/config.toml)"]
    machine.write("other/config.toml", machine.user.read_text())
    machine.environ["CODEX_HOME"] = str(machine.folder / "other")
    assert [source for source, _ in machine.layers(home)] == [
        "user (/other/config.toml)",
        "project (/home/.codex/config.toml)",
    ]


# The project root.


def test_an_empty_git_folder_does_not_start_a_project(machine: Machine) -> None:
    machine.write("project/.codex/config.toml", "model = 1")
    machine.trust(machine.project)
    (machine.project / "sub/.git").mkdir(parents=True)
    assert len(machine.layers(machine.project / "sub")) == 1
    machine.write("project/sub/.git/HEAD", "")
    assert machine.layers(machine.project / "sub") == []


def test_markers_can_be_chosen(machine: Machine) -> None:
    machine.write("project/.codex/config.toml", "model = 1")
    machine.write("project/sub/.codex/config.toml", "model = 2")
    machine.trust(machine.project, extra='project_root_markers = [".hg"]\n')
    # The root is the cwd now; its repository still lends the trust.
    assert [text for _, text in machine.layers(machine.project / "sub")] == ["model = 2\n"]
    (machine.project / ".hg").mkdir()
    assert len(machine.layers(machine.project / "sub")) == 2
    for nonsense in ("1", "[1]"):
        machine.user.write_text(f"project_root_markers = {nonsense}")
        assert machine.refusal() == f"{LOAD}project_root_markers must be an array of strings"


def test_a_linked_work_tree_has_the_trust_of_the_main_one(machine: Machine) -> None:
    private = machine.project / ".git/worktrees/tree"
    tree = machine.folder / "tree"
    machine.write("tree/.git", f"gitdir: {private}\n")
    machine.write("tree/.codex/config.toml", "model = 1")
    machine.trust(machine.project)
    assert machine.layers(tree) == []  # nothing there that points back
    machine.write("project/.git/worktrees/tree/commondir", "../..\n")
    machine.write("project/.git/worktrees/tree/gitdir", "/elsewhere/.git\n")
    assert machine.layers(tree) == []
    machine.write("project/.git/worktrees/tree/gitdir", f"{tree}/.git\n")
    assert len(machine.layers(tree)) == 1
    machine.write("tree/.git", "not a pointer\n")
    assert machine.layers(tree) == []


def test_without_any_marker_the_cwd_is_the_project(machine: Machine) -> None:
    plain = machine.folder / "plain"
    machine.write("plain/.codex/config.toml", "model = 1")
    machine.trust(plain)
    assert len(machine.layers(plain)) == 1
    assert machine.layers(plain / "sub") == []


# Homes.


def test_a_codex_home_that_is_named_must_be_a_folder(machine: Machine) -> None:
    machine.environ["CODEX_HOME"] = f"{machine.folder}/none"
    assert machine.refusal() == (
        'failed to find Codex home: CODEX_HOME points to "/none", but that path does not exist'
    )
    machine.environ["CODEX_HOME"] = str(machine.user)
    assert machine.refusal().endswith("but that path is not a directory")
    machine.environ["CODEX_HOME"] = str(machine.user / "x")
    assert "Not a directory (os error 20)" in machine.refusal()


def test_a_codex_home_that_is_named_is_shown_without_its_links(machine: Machine) -> None:
    link = machine.folder / "link"
    link.symlink_to(machine.user.parent)
    machine.environ["CODEX_HOME"] = str(link)
    assert machine.read(["model"]).codex_home_dir == f"file://{machine.user.parent}"


def test_the_default_codex_home_need_not_exist(machine: Machine) -> None:
    machine.environ = {"HOME": "/nonexistent", "CODEX_HOME": ""}
    assert machine.read(["model"]).codex_home_dir == "file:///nonexistent/.codex"


def test_without_a_home_in_the_environment_the_user_database_counts(machine: Machine) -> None:
    answer = read_executor_config(
        "/", [["a"]], [], environ={"HOME": ""}, home="/users/me", hostname=None
    )
    assert answer.user_home_dir == "file:///users/me"
    assert answer.codex_home_dir == "file:///users/me/.codex"
    with pytest.raises(ConfigLoadError, match=r"^failed to find Codex home: "):
        read_executor_config("/", [["a"]], [], environ={}, home=None, hostname=None)


def test_a_relative_home_is_not_shown(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(machine.folder)
    machine.environ["HOME"] = "home"
    answer = machine.read(["model"])
    assert answer.user_home_dir is None
    assert answer.codex_home_dir == f"file://{machine.user.parent}"


def test_the_host_has_one_name_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Short")

    def resolve(name: str, port: None, flags: int) -> list[tuple[int, int, int, str, object]]:
        assert (name, flags) == ("Short", socket.AI_CANONNAME)
        return [(0, 0, 0, "Short.Example", None)]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    assert executor_hostname() == "short.example"

    def fail(*_: object, **__: object) -> None:
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert executor_hostname() == "short"


# Requirements.


def test_requirements_come_from_their_own_file_and_the_managed_one(machine: Machine) -> None:
    machine.write("etc/requirements.toml", "a = 1\nb = 2\n")
    machine.write(
        "etc/managed_config.toml",
        'sandbox_mode = "workspace-write"\napprovals_reviewer = "guardian_subagent"\n'
        'approval_policy = "never"\na = 3\n',
    )
    keys = ("a", "allowed_sandbox_modes", "allowed_approval_policies")
    stack = machine.read(requirements=tuple([key] for key in keys)).requirements
    assert [(layer.source, layer.toml) for layer in stack.layers] == [
        (f"{machine.folder}/etc/requirements.toml", "a = 1\n"),
        (
            f"{machine.folder}/etc/managed_config.toml",
            'allowed_approval_policies = ["never"]\n'
            'allowed_sandbox_modes = ["read-only", "workspace-write"]\n',
        ),
    ]
    assert stack.cloud_insertion_index == 1
    assert stack.layers[0].base_dir == f"file://{machine.folder}/etc"


@pytest.mark.parametrize(
    ("setting", "rules"),
    [
        ('sandbox_mode = "read-only"', 'allowed_sandbox_modes = ["read-only"]\n'),
        ('approvals_reviewer = "user"', 'allowed_approvals_reviewers = ["user"]\n'),
        (
            'approvals_reviewer = "auto_review"',
            'allowed_approvals_reviewers = ["auto_review", "user"]\n',
        ),
        (
            "approval_policy.granular = "
            "{ rules = false, sandbox_approval = true, mcp_elicitations = true, x = 1 }",
            "[[allowed_approval_policies]]\n\n[allowed_approval_policies.granular]\n"
            "sandbox_approval = true\nrules = false\nskill_approval = false\n"
            "request_permissions = false\nmcp_elicitations = true\n",
        ),
    ],
)
def test_a_managed_setting_becomes_a_rule(machine: Machine, setting: str, rules: str) -> None:
    machine.write("etc/managed_config.toml", setting)
    keys = ("allowed_sandbox_modes", "allowed_approvals_reviewers", "allowed_approval_policies")
    (layer,) = machine.read(requirements=tuple([key] for key in keys)).requirements.layers
    assert layer.toml == rules


def test_a_managed_file_without_those_settings_makes_no_rules(machine: Machine) -> None:
    machine.write("etc/managed_config.toml", "a = 1")
    assert machine.read(requirements=(["a"],)).requirements.layers == []


# Errors.


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            'sandbox_mode = "x"',
            "unknown variant `x`, expected one of `read-only`, `workspace-write`, "
            "`danger-full-access`\nin `sandbox_mode`\n",
        ),
        (
            "approval_policy = 1",
            "invalid type: unit variant, expected string only\nin `approval_policy`\n",
        ),
        (
            "approval_policy.granular = { sandbox_approval = true }",
            "missing field `rules`\nin `approval_policy`\n",
        ),
    ],
)
def test_a_managed_setting_must_be_one_of_the_known(
    machine: Machine, setting: str, message: str
) -> None:
    machine.write("etc/managed_config.toml", setting)
    assert machine.refusal() == f"{LOAD}Failed to parse config requirements as TOML: {message}"


@pytest.mark.parametrize(
    ("projects", "message"),
    [
        ("projects = 1", "invalid type: integer `1`, expected a map\nin `projects`\n"),
        (
            'projects."/a" = true',
            "invalid type: boolean `true`, expected struct ProjectConfig\nin `projects./a`\n",
        ),
        (
            'projects."/a".trust_level = "Trusted"',
            "unknown variant `Trusted`, expected `trusted` or `untrusted`\n"
            "in `projects./a.trust_level`\n",
        ),
        ("projects = 1.5", "invalid type: floating point `1.5`, expected a map\nin `projects`\n"),
        ("projects = 'a'", 'invalid type: string "a", expected a map\nin `projects`\n'),
        ("projects = []", "invalid type: sequence, expected a map\nin `projects`\n"),
    ],
)
def test_the_trust_entries_must_make_sense(machine: Machine, projects: str, message: str) -> None:
    machine.user.write_text(projects)
    assert machine.refusal() == LOAD + message


def test_bad_toml_is_shown_with_its_place(machine: Machine) -> None:
    machine.user.write_text("a = 1\nmodel = \n")
    wrong = "Invalid value (at line 2, column 9)"
    assert machine.refusal() == f"{LOAD}/home/.codex/config.toml: {wrong}"
    machine.trust(machine.project)
    project = "/project/.codex/config.toml"
    machine.write(project[1:], "a = 1\nmodel = \n")
    assert machine.refusal() == f"{LOAD}Error parsing project config file {project}: {wrong}"
    requirements = "/etc/requirements.toml"
    machine.write(requirements[1:], "a = [")
    assert machine.refusal().startswith(
        f"{LOAD}failed to parse requirements layer {requirements}: Invalid value (at "
    )


def test_toml_too_deep_to_read_is_an_error_like_others(machine: Machine) -> None:
    machine.user.write_text(f"a = {'[' * 100_000}")
    assert machine.refusal().startswith(f"{LOAD}/home/.codex/config.toml: ")


@pytest.mark.parametrize(
    ("file", "blame"),
    [
        ("etc/managed_config.toml", ""),
        ("etc/config.toml", "Failed to read config file /etc/config.toml: "),
        ("home/.codex/config.toml", "Failed to read config file /home/.codex/config.toml: "),
        ("etc/requirements.toml", "Failed to read requirements file /etc/requirements.toml: "),
        (
            "project/.codex/config.toml",
            "Failed to read project config file /project/.codex/config.toml: ",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_named(machine: Machine, file: str, blame: str) -> None:
    managed = machine.write("etc/managed_config.toml", "")
    machine.trust(machine.project)
    managed.write_bytes(machine.user.read_bytes())
    path = machine.write(file, b"a = '\xff'")
    if file == "etc/managed_config.toml":
        machine.trust()
    assert machine.refusal() == f"{LOAD}{blame}not UTF-8 at byte 5"
    path.write_bytes(b"\xe2\x82")
    assert machine.refusal() == f"{LOAD}{blame}not UTF-8 at byte 0"
    path.unlink()
    path.symlink_to(path)
    assert machine.refusal().startswith(LOAD + blame)
    assert machine.refusal().endswith("(os error 40)")
    path.unlink()
    path.mkdir()
    assert machine.refusal() == f"{LOAD}{blame}path `/{file}` is not a file"
    path.rmdir()
    os.mkfifo(path)
    assert machine.refusal() == f"{LOAD}{blame}path `/{file}` is not a file"


def test_a_byte_order_mark_is_no_error(machine: Machine) -> None:
    machine.user.write_text("\ufeffmodel = 1")
    assert len(machine.layers()) == 1


# Projections and their spelling.


@pytest.mark.parametrize(
    ("text", "paths", "projection"),
    [
        # In the order of the file, whatever the request says.
        ("z = 1\na = 2\nb = 3", [["a"], ["z"]], "z = 1\na = 2\n"),
        (
            "[t]\na = 1\nb = 2\n[t.u]\nc = 3",
            [["t", "u"], ["t", "a"]],
            "[t]\na = 1\n\n[t.u]\nc = 3\n",
        ),
        ("[t]\na = 1\nb = 2", [["t", "a"], ["t"]], "[t]\na = 1\nb = 2\n"),
        # What a path reached before it ended.
        ("a = 1", [["a", "b", "c"]], "a = 1\n"),
        ("[t]\na = 1", [["t", "b"]], "[t]\n"),
        ("[[t]]\na = 1\nb = 2", [["t", "a"]], "[[t]]\na = 1\nb = 2\n"),
    ],
)
def test_a_projection_keeps_what_the_paths_reach(
    machine: Machine, text: str, paths: list[list[str]], projection: str
) -> None:
    machine.user.write_text(text)
    (layer,) = machine.read(*paths).config.layers
    assert layer.toml == projection


@pytest.mark.parametrize(
    "text",
    [
        'x = ""\n',
        'x = "it\'s"\n',
        "x = 'a\"b'\n",
        "x = 'C:\\x'\n",
        'x = "a\\tb"\n',
        'x = "\\b\\f\\u001B\\u007F\\u0000"\n',
        'x = "é\u200b\x85"\n',
        'x = """it\'s "q""""\n',
        "x = '''\\ '\" '''\n",
        "x = \"\\\\\\\"'''\"\n",
        'x = """\na\nb\n"""\n',
        'x = """\na\\r\n\\tb"""\n',
        "x = '''\na\n\"\"\"b'''\n",
        'x = """\na\n""\\"""\\"b\'\'\'"""\n',
        "x = 0\n",
        "x = -9223372036854775808\n",
        "x = 1.0\n",
        "x = -0.0\n",
        "x = 0.0000001\n",
        "x = 100000000000000000000.0\n",
        "x = inf\ny = -inf\nz = nan\n",
        "x = true\ny = false\n",
        "x = 1979-05-27T07:32:00Z\n",
        "x = 1979-05-27T00:32:00.999999-07:00\n",
        "x = 1979-05-27T07:32:00.5\n",
        "x = 1979-05-27\n",
        "x = 07:32:00\n",
        'x = [1, [2, 3], [], ["""\na\nb"""]]\n',
        "x = [{ a = 1, b = {} }, 1]\n",
        "[x]\n",
        "[x.y.z]\n",
        "y = 1\n\n[x]\nb = 1\n\n[x.t]\na = 1\n\n[x.s]\n",
        "[[x]]\n\n[x.a]\nb = 1\n\n[[x]]\n\n[[x.c]]\nd = 1\n",
        '[x]\n"a b" = 1\n"é" = 2\na-b = 3\n"" = 4\n\'a"b\' = 5\n"a\\nb" = 6\n1 = 7\n"a\'\\"" = 8\n',
    ],
)
def test_toml_is_spelled_like_the_real_server_does(machine: Machine, text: str) -> None:
    machine.user.write_text(text)
    (layer,) = machine.read(["x"], ["y"], ["z"]).config.layers
    assert layer.toml == text


toml_values = st.recursive(
    st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=6)
    | st.text(alphabet="\"'\\\n\t\ra\x01", max_size=8)
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
    | st.dates()
    | st.times(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        | st.lists(st.dictionaries(st.text(max_size=2), inner, max_size=2), max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=4), toml_values, max_size=4))
def test_what_is_spelled_reads_back_as_the_same(table: dict[str, object]) -> None:
    assert tomllib.loads(spell_toml(table)) == table
