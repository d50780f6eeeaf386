"""
The process beside the sandbox that attempts go for. It runs as a program of its own.

It listens, holds secrets and descriptors, and counts all that reaches it. A line on its input
asks for that count, so that whoever watches can say that nothing did.
"""

import ctypes
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

SECRET = b"holdfast-outsider-secret"

IPC_CREAT, IPC_EXCL, IPC_RMID = 0o1000, 0o2000, 0

heard: list[str] = []
"""All that reached it, in words."""


def stream_of(kind: int, address: Any, family: int) -> socket.socket:
    listener = socket.socket(family, kind)
    listener.bind(address)
    if kind != socket.SOCK_DGRAM:
        listener.listen()
    listener.setblocking(False)
    return listener


def share_memory(libc: ctypes.CDLL) -> int:
    """A segment of System V memory with the secret in it; its key."""
    key = os.getpid() + 0x48460000
    segment = libc.shmget(key, 4096, IPC_CREAT | IPC_EXCL | 0o600)
    assert segment >= 0, os.strerror(ctypes.get_errno())
    libc.shmat.restype = ctypes.c_void_p
    at = libc.shmat(segment, None, 0)
    ctypes.memmove(at, SECRET, len(SECRET))
    return key


def handle(listener: socket.socket, name: str, gift: int) -> None:
    """Take one connection or datagram; whoever connects is handed a descriptor to write with."""
    if listener.type == socket.SOCK_DGRAM:
        data, descriptors, _, _ = socket.recv_fds(listener, 4096, 4)
        heard.append(f"{name}: {data!r} and {len(descriptors)} descriptors")
        for fd in descriptors:
            os.close(fd)
        return
    with listener.accept()[0] as connection:
        heard.append(f"{name}: a connection")
        if connection.family == socket.AF_UNIX:
            with suppress(BrokenPipeError):
                socket.send_fds(connection, [b"x"], [gift])


def main() -> None:
    folder = sys.argv[1]
    libc = ctypes.CDLL(None, use_errno=True)
    os.chdir(folder)
    with open("gift", "w"):
        pass
    gift = os.open("gift", os.O_WRONLY)
    memory = ctypes.create_string_buffer(SECRET)
    key = share_memory(libc)
    queue = f"/holdfast-{os.getpid()}"
    messages = libc.mq_open(queue.encode(), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600, None)
    assert messages >= 0, os.strerror(ctypes.get_errno())
    messages_by_key = libc.msgget(key, IPC_CREAT | IPC_EXCL | 0o600)
    semaphores = libc.semget(key, 1, IPC_CREAT | IPC_EXCL | 0o600)
    shared = f"/dev/shm/holdfast-{os.getpid()}"
    with open(shared, "wb") as file:
        file.write(SECRET)

    sockets = {
        "tcp4": stream_of(socket.SOCK_STREAM, ("127.0.0.1", 0), socket.AF_INET),
        "udp4": stream_of(socket.SOCK_DGRAM, ("127.0.0.1", 0), socket.AF_INET),
        "stream": stream_of(socket.SOCK_STREAM, f"{folder}/stream", socket.AF_UNIX),
        "seqpacket": stream_of(socket.SOCK_SEQPACKET, f"{folder}/seqpacket", socket.AF_UNIX),
        "dgram": stream_of(socket.SOCK_DGRAM, f"{folder}/dgram", socket.AF_UNIX),
        "abstract": stream_of(
            socket.SOCK_STREAM, f"\0holdfast-{os.getpid()}-stream", socket.AF_UNIX
        ),
        "abstract_dgram": stream_of(
            socket.SOCK_DGRAM, f"\0holdfast-{os.getpid()}-dgram", socket.AF_UNIX
        ),
    }
    if socket.has_ipv6:
        with suppress(OSError):  # a machine without IPv6; the attempts that need it say so
            sockets["tcp6"] = stream_of(socket.SOCK_STREAM, ("::1", 0), socket.AF_INET6)
            sockets["udp6"] = stream_of(socket.SOCK_DGRAM, ("::1", 0), socket.AF_INET6)

    signal.signal(signal.SIGUSR1, lambda *_: heard.append("a signal"))

    def spelled(address: Any) -> Any:
        if isinstance(address, bytes):
            return "@" + address[1:].decode()
        return address[1] if isinstance(address, tuple) else address

    selector = selectors.DefaultSelector()
    for name, listener in sockets.items():
        selector.register(listener, selectors.EVENT_READ, name)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    about = {name: spelled(listener.getsockname()) for name, listener in sockets.items()}
    about |= {
        "pid": os.getpid(),
        "folder": folder,
        "gift": gift,
        "address": ctypes.addressof(memory),
        "secret": SECRET.decode(),
        "key": key,
        "queue": queue,
        "shared": shared,
        "namespaces": {
            name: os.readlink(f"/proc/self/ns/{name}") for name in os.listdir("/proc/self/ns")
        },
    }
    tell(about)
    try:
        serve(selector, gift)
    finally:
        os.unlink(shared)
        libc.mq_unlink(queue.encode())
        libc.shmctl(libc.shmget(key, 0, 0), IPC_RMID, None)
        libc.msgctl(messages_by_key, IPC_RMID, None)
        libc.semctl(semaphores, 0, IPC_RMID)


def tell(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def serve(selector: selectors.BaseSelector, gift: int) -> None:
    """Until the end of the input; what came before a question is part of the answer."""
    while True:
        events = [event for event, _ in selector.select()]
        for event in events:
            if isinstance(event.fileobj, socket.socket):
                handle(event.fileobj, event.data, gift)
        if all(isinstance(event.fileobj, socket.socket) for event in events):
            continue
        if len(events) == 1:  # all else was taken in before
            if not sys.stdin.readline():
                return
            state = {
                "heard": heard,
                "gift": os.fstat(gift).st_size,
                "nice": os.getpriority(os.PRIO_PROCESS, 0),
            }
            tell(state)


if __name__ == "__main__":
    main()
