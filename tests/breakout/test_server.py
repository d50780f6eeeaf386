"""
Breaking out through the server: a command with the network asks the one that started it.

It knows the address, and looks for the token wherever it can read. What it asks for is a file
outside of its sandbox, made by a command in none.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

import holdfast
from holdfast.environments.sandbox import SandboxProfile
from tests.breakout.ground import PYTHON
from tests.e2e.wire import HOLDFAST, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASK = """
import base64, json, os, re, socket, struct, sys
address, wanted = sys.argv[1:3]

def tokens():
    found = [""]
    folders = [os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.getuid()}", *sys.argv[3:]]
    for path in filter(None, folders):
        for folder, _, names in os.walk(path):
            for name in names:
                try:
                    with open(f"{folder}/{name}") as file:
                        found += re.findall(r"[A-Za-z0-9_-]{20,}", file.read(10_000))
                except (OSError, UnicodeDecodeError):
                    pass
    return found[:50]

def connect():
    if address.startswith("/"):
        line = socket.socket(socket.AF_UNIX)
        line.connect(address)
        return line
    return socket.create_connection(("127.0.0.1", int(address)))

def frame(text):
    mask, data = os.urandom(4), text.encode()
    head = b"\\x81" + (
        bytes([0x80 | len(data)]) if len(data) < 126 else struct.pack("!BH", 0x80 | 126, len(data))
    )
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))

def speak(line, framed):
    start = {"processId": "out", "argv": ["/bin/sh", "-c", f": > '{wanted}'"],
             "cwd": "file:///", "env": {}, "tty": False, "arg0": None}
    for message in (
        {"id": 1, "method": "initialize", "params": {"clientName": "out"}},
        {"method": "initialized"},
        {"id": 2, "method": "process/start", "params": start},
    ):
        line.sendall(framed(json.dumps(message)))
    told = b""
    while b"process/exited" not in told and b'"error"' not in told:
        told += line.recv(4096) or b'"error"'
    return "asked"

def ask(token):
    with connect() as line:
        line.settimeout(5)
        if address.startswith("/"):
            return speak(line, lambda text: text.encode() + b"\\n")
        sent = f"Authorization: Bearer {token}\\r\\n" if token else ""
        line.sendall(
            f"GET / HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\n"
            f"Upgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
            f"Sec-WebSocket-Version: 13\\r\\n{sent}"
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}\\r\\n\\r\\n".encode()
        )
        if b" 101 " not in line.recv(4096).partition(b"\\r\\n")[0]:
            return "refused"
        return speak(line, frame)

said = []
try:
    said = [ask(token) for token in tokens()]
except OSError as error:
    said.append(str(error))
print("BLOCKED", set(said))
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A runtime directory of a user's own, for the server and for its clients."""
    folder = tmp_path_factory.mktemp("run").resolve()
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        yield folder


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["port", "socket"])
async def server(
    request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[str, holdfast.Environment]]:
    """The address of a server as anybody starts it, and a client of it."""
    path = tmp_path_factory.mktemp("s").resolve() / "socket"
    listen = "ws://127.0.0.1:0" if request.param == "port" else f"unix://{path}"
    with serving("--listen", listen, command=(*HOLDFAST, "serve")) as running:
        address = running.url.rpartition(":")[2] if request.param == "port" else str(path)
        async with holdfast.connect(running.url) as env:
            yield address, env


@pytest.mark.parametrize("sandboxed", [False, True], ids=["freely", "sandboxed"])
async def test_a_command_gets_nothing_out_of_the_server_that_started_it(
    server: tuple[str, holdfast.Environment], home: Path, tmp_path: Path, sandboxed: bool
) -> None:
    address, env = server
    wanted = tmp_path / "outside"
    work = tmp_path / "work"
    work.mkdir()
    profile = SandboxProfile(base="workspace-write", network=True) if sandboxed else None
    done = await env.run(
        [PYTHON, "-I", "-S", "-c", ASK, address, str(wanted), str(home)],
        cwd=str(work),
        sandbox=profile,
        timeout=30,
    )
    assert "BLOCKED" in done.stdout, done
    # Without a sandbox it finds the token, as every program of the user does.
    assert wanted.exists() is not sandboxed, done.stdout
