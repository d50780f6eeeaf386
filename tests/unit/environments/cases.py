"""Files that are right, and files that are wrong with what Codex says about them."""

A = '[[environments]]\nid = "a"\n'
URL = A + 'url = "ws://x"\n'
PROGRAM = A + 'program = "ssh"\n'

EVERYTHING = """\
default = " ssh-dev "
include_local = true

[[environments]]
id = "devbox"
url = " wss://devbox.example/exec "
auth_bearer_token = "secret"
connect_timeout_sec = 5.5
initialize_timeout_sec = 20
skills = { required = ["tides"] }

[[environments]]
id = "ssh-dev"
program = " ssh "
args = ["dev", "codex exec-server --listen stdio"]
env = { LANG = "C.UTF-8" }
cwd = "work"
skills = {}
"""

ENTRY_KEYS = (
    "`id`, `skills`, `url`, `auth_bearer_token`, `program`, `args`, `env`, `cwd`,"
    " `connect_timeout_sec`, `initialize_timeout_sec`"
)

NO_IDS: list[tuple[str, str]] = [
    ("", "environment id cannot be empty"),
    (" a ", "environment id ` a ` must not contain surrounding whitespace"),
    ("local", "environment id `local` is reserved"),
    ("none", "environment id `none` is reserved"),
    ("NONE", "environment id `NONE` is reserved"),
    ("a" * 65, f"environment id `{'a' * 65}` cannot be longer than 64 characters"),
    ("ä" * 33, f"environment id `{'ä' * 33}` cannot be longer than 64 characters"),
    ("a b", "environment id `a b` must contain only ASCII letters, numbers, '-' or '_'"),
    ("ä", "environment id `ä` must contain only ASCII letters, numbers, '-' or '_'"),
    ("a.b", "environment id `a.b` must contain only ASCII letters, numbers, '-' or '_'"),
]
"""An id, and the text about it."""

NO_SENSE: list[tuple[str, str]] = [
    (URL + URL, "environment id `a` is duplicated"),
    (A, "environment `a` must set exactly one of url or program"),
    (URL + 'program = "x"', "environment `a` must set exactly one of url or program"),
    (
        A + 'url = ""\nprogram = "x"\nargs = []',
        "environment `a` must set exactly one of url or program",
    ),
    (URL + "args = []", "environment `a` args, env, and cwd require program"),
    (URL + "env = {}", "environment `a` args, env, and cwd require program"),
    (URL + 'cwd = "x"', "environment `a` args, env, and cwd require program"),
    (A + "args = []", "environment `a` args, env, and cwd require program"),
    (PROGRAM + "connect_timeout_sec = 1", "environment `a` connect_timeout_sec requires url"),
    (PROGRAM + 'auth_bearer_token = "t"', "environment `a` auth_bearer_token requires url"),
    (
        PROGRAM + 'connect_timeout_sec = 1\nauth_bearer_token = "t"',
        "environment `a` auth_bearer_token requires url",
    ),
    (A + 'program = " "', "environment `a` program cannot be empty"),
    (
        A + 'program = ""\nconnect_timeout_sec = 1',
        "environment `a` connect_timeout_sec requires url",
    ),
    (A + 'url = "  "', "environment url cannot be empty"),
    (A + 'url = "http://x"', "environment url `http://x` must use ws:// or wss://"),
    (
        A + 'url = "ws://"',
        "environment url `ws://` is invalid: HTTP format error: empty string",
    ),
    (
        A + 'url = "ws://localhost"\nauth_bearer_token = "a\\nb"',
        "invalid value for exec-server WebSocket header `authorization`",
    ),
    (
        A + 'url = "ws://far"\nauth_bearer_token = "t"',
        "exec-server WebSocket headers require wss:// or a loopback destination",
    ),
    ('default = " "', "default environment id cannot be empty"),
    ('default = "x"', "default environment `x` is not configured"),
    ('default = "LOCAL"', "default environment `LOCAL` is not configured"),
    (
        'default = "local"\ninclude_local = false',
        "default environment `local` is not configured",
    ),
]
"""A file whose keys contradict each other or the world, and the text about it."""

UNFIT: list[tuple[str, str]] = [
    ("x = 1", "unknown field `x`, expected one of `default`, `include_local`, `environments`"),
    (URL + "zz = 1", f"unknown field `zz`, expected one of {ENTRY_KEYS} in `environments`"),
    (
        URL + "skills = { x = 1 }",
        "unknown field `x`, expected `required` in `environments.skills`",
    ),
    ('[[environments]]\nurl = "ws://x"', "missing field `id` in `environments`"),
    ("default = 1", "invalid type: integer `1`, expected a string in `default`"),
    ("default = 1.5", "invalid type: floating point `1.5`, expected a string in `default`"),
    ("default = []", "invalid type: sequence, expected a string in `default`"),
    ("default = {}", "invalid type: map, expected a string in `default`"),
    (
        'include_local = "x"',
        'invalid type: string "x", expected a boolean in `include_local`',
    ),
    ("environments = 3", "invalid type: integer `3`, expected a sequence in `environments`"),
    (
        '[environments]\nid = "a"',
        "invalid type: map, expected a sequence in `environments`",
    ),
    (
        'environments = ["a"]',
        'invalid type: string "a", expected a table in `environments`',
    ),
    (
        PROGRAM + 'args = "y"',
        'invalid type: string "y", expected a sequence in `environments.args`',
    ),
    (
        PROGRAM + "args = [true]",
        "invalid type: boolean `true`, expected a string in `environments.args`",
    ),
    (
        PROGRAM + "env = { A = 1 }",
        "invalid type: integer `1`, expected a string in `environments.env.A`",
    ),
    (
        PROGRAM + "env = 1",
        "invalid type: integer `1`, expected a map in `environments.env`",
    ),
    (
        URL + 'connect_timeout_sec = "1"',
        'invalid type: string "1", expected f64 in `environments.connect_timeout_sec`',
    ),
    (
        URL + "connect_timeout_sec = true",
        "invalid type: boolean `true`, expected f64 in `environments.connect_timeout_sec`",
    ),
    (
        URL + "connect_timeout_sec = -1",
        "cannot convert float seconds to Duration: value is negative"
        " in `environments.connect_timeout_sec`",
    ),
    *(
        (
            URL + f"initialize_timeout_sec = {number}",
            "cannot convert float seconds to Duration: value is either too big or NaN"
            " in `environments.initialize_timeout_sec`",
        )
        for number in ("inf", "nan", "1e20", "18446744073709551616.0")
    ),
    ("x = " + "[" * 5000, "nested too deeply"),
]
"""A file with a key that is unknown, missing or of another type, and what is wrong with it."""
