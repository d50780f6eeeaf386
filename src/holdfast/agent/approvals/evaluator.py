"""
Program of the child process that evaluates rules files.

Its first argument is the directory from which to import `starlark`. It reads one JSON object from
stdin: `limits` and `files`, each with `name` and `text`. For every file it writes one line of JSON
to stdout: `{"calls": […]}` or `{"error": "…"}`. It imports nothing from Holdfast, so that it starts
fast; the kernel limits its memory and CPU time.

Starlark passes tuples to Python as lists. So each file is first evaluated with functions written in
Starlark, which see the real types. On an error it is evaluated again with native functions that
raise the error at the same call, which gives its position in the file.
"""

import json
import math
import posixpath
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__: list[str] = []

# The parameters of each function and their types, in the order of positional arguments.
_PARAMETERS: dict[str, dict[str, str]] = {
    "prefix_rule": {
        "pattern": "list",
        "decision": "str",
        "match": "list",
        "not_match": "list",
        "justification": "str",
    },
    "host_executable": {"name": "str", "paths": "list"},
    "network_rule": {"host": "str", "protocol": "str", "decision": "str", "justification": "str"},
}

# Checked in this order, which determines the first error.
_REQUIRED = {
    "prefix_rule": ("pattern",),
    "host_executable": ("name", "paths"),
    "network_rule": ("host", "protocol", "decision"),
}

# Parameters that only Holdfast has; keyword-only.
_OWN_PARAMETERS = {"prefix_rule": {"sandbox": "str"}}

# Accepted spellings of protocols.
_PROTOCOLS = {
    "http": "http",
    "https": "https",
    "https_connect": "https",
    "http-connect": "https",
    "socks5_tcp": "socks5_tcp",
    "socks5_udp": "socks5_udp",
}

_WRAPPER = """
def {name}(*args, **kwargs):
    values = list(args) + kwargs.values()
    seen = [
        [
            type(v),
            v if type(v) == "string" else None,
            repr(v),
            [
                [
                    type(e),
                    e if type(e) == "string" else None,
                    [
                        [type(x), x if type(x) == "string" else None]
                        for x in (e if type(e) == "list" else [])
                    ],
                ]
                for e in (v if type(v) == "list" else [])
            ],
        ]
        for v in values
    ]
    return holdfast_native_call("{name}", len(args), kwargs.keys(), seen)
"""
# The template above is a function for rules files; it passes on the types of its arguments. It has
# no helpers, since a rules file could redefine them.

# Most characters of a value in an error, including the mark for omissions.
_SHOWN = 58

_LEFT_OUT = "<<...>>"


class RuleRefused(Exception):
    """A call that does not make a valid rule; the text says why."""


class Value:
    """An argument of a call: its Starlark type and the needed parts of its value."""

    def __init__(self, seen: Sequence[Any]) -> None:
        self.type: str = seen[0]
        self.text: str | None = seen[1]
        self.representation: str = seen[2]
        self.elements: list[tuple[str, str | None, list[tuple[str, str | None]]]] = [
            (kind, text, [(inner[0], inner[1]) for inner in inners])
            for kind, text, inners in seen[3]
        ]

    @property
    def shown(self) -> str:
        """The value for errors, shortened in the middle."""
        if len(self.representation) <= _SHOWN:
            return self.representation
        kept = _SHOWN - len(_LEFT_OUT)
        # Two thirds of the room are for the beginning, one third for the end.
        head = kept * 2 // 3
        return self.representation[:head] + _LEFT_OUT + self.representation[head - kept :]


class RecordedCalls:
    """The calls made by one rules file."""

    def __init__(self, limits: Mapping[str, Any]) -> None:
        self.limits = limits
        self.calls: list[dict[str, Any]] = []
        self.rules = 0
        self.made = 0
        self.refused: tuple[int, str] | None = None

    def call(self, name: str, positional: int, keywords: list[str], seen: list[Any]) -> None:
        """Check a call and record it."""
        self.made += 1
        try:
            values = [Value(value) for value in seen]
            arguments = _bind(
                name, values[:positional], dict(zip(keywords, values[positional:], strict=True))
            )
            made = _CHECKS[name](arguments)
            # A pattern with alternatives counts once for each, as it is stored.
            self.rules += len(made["pattern"][0]) if name == "prefix_rule" else 1
            if self.rules > self.limits["rules"]:
                raise RuleRefused(f"a rules file may have {self.limits['rules']} rules at most")
        except RuleRefused as refused:
            self.refused = (self.made, str(refused))
            raise
        self.calls.append({"call": name, **made})


def _bind(name: str, positional: list[Value], keywords: dict[str, Value]) -> dict[str, Value]:
    parameters = _PARAMETERS[name]
    own = _OWN_PARAMETERS.get(name, {})
    bound = dict(zip(parameters, positional, strict=False))
    # The order of these checks is that of starlark's own binding.
    for keyword in keywords:
        if keyword in bound:
            raise RuleRefused(f"Argument `{keyword}` occurs more than once")
    for required in _REQUIRED[name]:
        if required not in bound and required not in keywords:
            raise RuleRefused(f"Missing parameter `{required}` for call to `{name}`")
    extra = len(positional) - len(parameters)
    if extra > 0:
        raise RuleRefused(f"Found {extra} extra positional argument(s) for call to {name}")
    unknown = [f"`{keyword}`" for keyword in keywords if keyword not in {**parameters, **own}]
    if unknown:
        names = " ".join(unknown)
        raise RuleRefused(f"Found {names} extra named parameter(s) for call to {name}")
    bound.update(keywords)
    for parameter, expected in {**parameters, **own}.items():
        value = bound.get(parameter)
        if value is not None and value.type != {"str": "string"}.get(expected, expected):
            raise RuleRefused(
                f"Type of parameter `{parameter}` doesn't match, expected `{expected}`, "
                f"actual `{value.type} (repr: {value.shown})`"
            )
    return bound


def _text(arguments: dict[str, Value], name: str) -> str | None:
    value = arguments.get(name)
    return None if value is None else value.text


def _prefix_rule(arguments: dict[str, Value]) -> dict[str, Any]:
    decision = _text(arguments, "decision")
    if decision not in (None, "allow", "prompt", "forbidden"):
        raise RuleRefused(f"invalid decision: {decision}")
    justification = _justification(arguments)
    pattern = [_alternatives(element) for element in arguments["pattern"].elements]
    if not pattern:
        raise RuleRefused("invalid pattern element: pattern cannot be empty")
    sandbox = _text(arguments, "sandbox")
    if sandbox not in (None, "default", "none"):
        raise RuleRefused(f'invalid sandbox: {sandbox} (expected "default" or "none")')
    if sandbox == "none" and decision not in (None, "allow"):
        raise RuleRefused(f'invalid rule: sandbox="none" is for decision="allow", not {decision}')
    return {
        "pattern": pattern,
        "decision": decision or "allow",
        "justification": justification,
        "match": _examples(arguments, "match"),
        "not_match": _examples(arguments, "not_match"),
        "outside_sandbox": sandbox == "none",
    }


def _justification(arguments: dict[str, Value]) -> str | None:
    justification = _text(arguments, "justification")
    if justification is not None and not justification.strip():
        raise RuleRefused("invalid rule: justification cannot be empty")
    return justification


def _alternatives(element: tuple[str, str | None, list[tuple[str, str | None]]]) -> list[str]:
    kind, text, inner = element
    if text is not None:
        return [text]
    if kind != "list":
        raise RuleRefused(
            "invalid pattern element: pattern element must be a string or list of strings "
            f"(got {kind})"
        )
    words = []
    for inner_kind, word in inner:
        if word is None:
            raise RuleRefused(
                f"invalid pattern element: pattern alternative must be a string (got {inner_kind})"
            )
        words.append(word)
    if not words:
        raise RuleRefused("invalid pattern element: pattern alternatives cannot be empty")
    return words


def _examples(arguments: dict[str, Value], name: str) -> list[list[str]]:
    value = arguments.get(name)
    return [] if value is None else [_example(element) for element in value.elements]


def _example(element: tuple[str, str | None, list[tuple[str, str | None]]]) -> list[str]:
    kind, text, inner = element
    if text is not None:
        words = split_words(text)
        if words is None:
            raise RuleRefused("invalid example: example string has invalid shell syntax")
        if not words:
            raise RuleRefused("invalid example: example cannot be an empty string")
        return words
    if kind != "list":
        raise RuleRefused(
            f"invalid example: example must be a string or list of strings (got {kind})"
        )
    words = []
    for inner_kind, word in inner:
        if word is None:
            raise RuleRefused(f"invalid example: example tokens must be strings (got {inner_kind})")
        words.append(word)
    if not words:
        raise RuleRefused("invalid example: example cannot be an empty list")
    return words


def split_words(text: str) -> list[str] | None:
    """
    Return the words of an example, split as by a POSIX shell without expansions.

    Returns:
        None if a quote is not closed or the last character is a backslash.
    """
    words: list[str] = []
    word: list[str] | None = None
    characters = iter(text)
    for character in characters:
        if character in " \t\n":
            if word is not None:
                words.append("".join(word))
            word = None
        # A comment, up to the end of the line.
        elif character == "#" and word is None:
            for skipped in characters:
                if skipped == "\n":
                    break
        elif character == "\\":
            escaped = next(characters, None)
            if escaped is None:
                return None
            if escaped != "\n":
                word = [*(word or ()), escaped]
        elif character in "'\"":
            quoted = _quoted(character, characters)
            if quoted is None:
                return None
            word = [*(word or ()), quoted]
        else:
            if word is None:
                word = []
            word.append(character)
    if word is not None:
        words.append("".join(word))
    return words


def _quoted(quote: str, characters: Iterator[str]) -> str | None:
    """Return the text up to the closing quote, or None if it is missing."""
    text: list[str] = []
    for character in characters:
        if character == quote:
            return "".join(text)
        if character == "\\" and quote == '"':
            escaped = next(characters, None)
            if escaped is None:
                return None
            if escaped in '$`"\\':
                text.append(escaped)
            elif escaped != "\n":
                text += ("\\", escaped)
        else:
            text.append(character)
    return None


def _host_executable(arguments: dict[str, Value]) -> dict[str, Any]:
    name = arguments["name"].text or ""
    if not name:
        raise RuleRefused("invalid rule: host_executable name cannot be empty")
    if "/" in name or name in (".", ".."):
        raise RuleRefused(
            f"invalid rule: host_executable name must be a bare executable name (got {name})"
        )
    paths = []
    for kind, path, _ in arguments["paths"].elements:
        if path is None:
            raise RuleRefused(f"invalid rule: host_executable paths must be strings (got {kind})")
        if not path.startswith("/"):
            raise RuleRefused(f"invalid rule: host_executable paths must be absolute (got {path})")
        normal = posixpath.normpath("/" + path.lstrip("/"))
        if posixpath.basename(normal) != name:
            raise RuleRefused(
                f"invalid rule: host_executable path `{path}` must have basename `{name}`"
            )
        paths.append(normal)
    return {"name": name, "paths": paths}


def _network_rule(arguments: dict[str, Value]) -> dict[str, Any]:
    protocol = arguments["protocol"].text or ""
    if protocol not in _PROTOCOLS:
        raise RuleRefused(
            "invalid rule: network_rule protocol must be one of http, https, socks5_tcp, "
            f"socks5_udp (got {protocol})"
        )
    decision = arguments["decision"].text or ""
    if decision not in ("allow", "prompt", "deny", "forbidden"):
        raise RuleRefused(f"invalid decision: {decision}")
    justification = _justification(arguments)
    return {
        "host": _normal_host(arguments["host"].text or ""),
        "protocol": _PROTOCOLS[protocol],
        "decision": "forbidden" if decision == "deny" else decision,
        "justification": justification,
    }


def _normal_host(text: str) -> str:
    host = text.strip()
    if not host:
        raise RuleRefused("invalid rule: network_rule host cannot be empty")
    if any(character in host for character in "/?#"):
        raise RuleRefused(
            "invalid rule: network_rule host must be a hostname or IP literal "
            "(without scheme or path)"
        )
    if host.startswith("["):
        inside, bracket, suffix = host[1:].partition("]")
        if not bracket:
            raise RuleRefused(
                "invalid rule: network_rule host has an invalid bracketed IPv6 literal"
            )
        if suffix and not (suffix[0] == ":" and suffix[1:].isascii() and suffix[1:].isdigit()):
            raise RuleRefused(
                f"invalid rule: network_rule host contains an unsupported suffix: {text}"
            )
        host = inside
    # A single colon separates a port; several mean an IPv6 address without brackets.
    elif host.count(":") == 1:
        name, _, port = host.partition(":")
        if name and port.isascii() and port.isdigit():
            host = name
    host = host.rstrip(".").strip().lower()
    if not host:
        raise RuleRefused("invalid rule: network_rule host cannot be empty")
    if "*" in host:
        raise RuleRefused(
            "invalid rule: network_rule host must be a specific host; wildcards are not allowed"
        )
    if any(character.isspace() for character in host):
        raise RuleRefused("invalid rule: network_rule host cannot contain whitespace")
    return host


_CHECKS = {
    "prefix_rule": _prefix_rule,
    "host_executable": _host_executable,
    "network_rule": _network_rule,
}


class Steps:
    """Counts the steps of one evaluation."""

    def __init__(self, limit: int) -> None:
        # starlark calls `check` every thousand steps.
        self._left = limit // 1000
        self.used_up = False

    def check(self) -> bool:
        """Return True if the evaluation must end."""
        self._left -= 1
        self.used_up = self._left < 0
        return self.used_up


def evaluate(starlark: Any, name: str, text: str, limits: Mapping[str, Any]) -> dict[str, Any]:
    """Return the calls of a rules file, or its error."""
    file = RecordedCalls(limits)
    steps = Steps(limits["steps"])
    module = starlark.Module()
    module.add_callable("holdfast_native_call", file.call)
    dialect = starlark.Dialect.extended()
    dialect.enable_f_strings = True
    standard = starlark.Globals.standard()
    for function in _PARAMETERS:
        wrapper = starlark.parse("rules", _WRAPPER.format(name=function), dialect)
        starlark.eval(module, wrapper, standard)
    # A wrapper needs slightly more stack than a native function.
    options = starlark.EvalOptions(check_cancelled=steps.check, max_callstack_size=53)
    try:
        starlark.eval_with(options, module, starlark.parse(name, text, dialect), standard)
    except starlark.StarlarkError as error:
        if steps.used_up:
            return {"error": f"evaluation needs more than {limits['steps']} steps"}
        located = _native_error(starlark, name, text, file) or str(error)
        return {"error": f"starlark error: {located}"}
    # Only functions can exceed the permitted depth of rules files.
    if "def" in text and (deeper := _native_error(starlark, name, text, file)) is not None:
        return {"error": f"starlark error: {deeper}"}
    return {"calls": file.calls}


def _native_error(starlark: Any, name: str, text: str, file: RecordedCalls) -> str | None:
    """
    Evaluate a file again with native functions.

    Returns:
        The error with its positions; None without an error.
    """
    refused_call, refusal = file.refused or (0, "")
    made = 0

    def native(*_: object, **__: object) -> None:
        nonlocal made
        made += 1
        if made == refused_call:
            raise RuleRefused(refusal)

    module = starlark.Module()
    for function in _PARAMETERS:
        module.add_callable(function, native)
    dialect = starlark.Dialect.extended()
    dialect.enable_f_strings = True
    steps = Steps(file.limits["steps"])
    options = starlark.EvalOptions(check_cancelled=steps.check, max_callstack_size=50)
    try:
        ast = starlark.parse(name, text, dialect)
        starlark.eval_with(options, module, ast, starlark.Globals.standard())
    except starlark.StarlarkError as error:
        lines = str(error).split("\n")
    else:
        return None
    for index, line in enumerate(lines):
        if file.refused is None:
            break
        # The binding refuses some values, such as functions, before it calls `native`.
        if line.startswith(("error: RuleRefused: ", "error: StarlarkError: Operation `serde::")):
            lines[index : _end_of_message(lines, index)] = ("error: " + refusal).split("\n")
            break
    return "\n".join(lines)


def _end_of_message(lines: list[str], start: int) -> int:
    """Return the index of the first line after a message, which shows its position."""
    for index in range(start, len(lines)):
        if lines[index].lstrip().startswith("--> "):
            return index
    return len(lines)


def main() -> None:
    """Evaluate the files given on stdin."""
    # Appended, so that nothing in that directory can shadow the standard library.
    sys.path.append(sys.argv[1])
    # Late, because it is only found with the path added above.
    import starlark

    order = json.load(sys.stdin)
    limits = order["limits"]
    memory = limits["memory"]
    # Set before any rules file is read: the evaluator must not trust its input.
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    for file in order["files"]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        # RLIMIT_CPU counts from the start of the process, so add the time already used.
        used = math.ceil(usage.ru_utime + usage.ru_stime)
        resource.setrlimit(resource.RLIMIT_CPU, (used + limits["seconds"], resource.RLIM_INFINITY))
        panicked = False
        try:
            answer = evaluate(starlark, file["name"], file["text"], limits)
        # Memory can no longer be relied on: the parent sees the end of this process.
        except MemoryError:
            raise
        except BaseException as error:  # noqa: BLE001 - a Rust panic is not an Exception
            answer, panicked = {"error": f"evaluation failed: {error}"}, True
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        # The state of starlark is unknown after a panic; the parent starts another process.
        if panicked:
            return


if __name__ == "__main__":
    main()
