"""The network, where the profile grants none."""

import ctypes
import mmap
import os
import socket
import struct
import threading
from contextlib import suppress

import pytest

from tests.breakout.inside import Ground, in_a_child, numbered, syscall
from tests.breakout.table import attempt


@attempt("read-only", "workspace", "offline", "narrow", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.no-network")
def connect_to_a_server(at: Ground) -> None:
    socket.create_connection(("127.0.0.1", at.outsider["tcp4"])).close()


@attempt("workspace", blocked_by="EPERM", kernel="IPv6 on its loopback")
@pytest.mark.requirement("security.sandbox.no-network")
def connect_to_a_server_over_ipv6(at: Ground) -> None:
    if "tcp6" not in at.outsider:
        raise OSError(97, "EAFNOSUPPORT")
    socket.create_connection(("::1", at.outsider["tcp6"])).close()


@attempt("workspace", blocked_by="EPERM")
def connect_behind_a_filter_of_my_own(at: Ground) -> None:
    """Of several filters the strictest counts; one that allows everything opens nothing."""
    allow = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000))
    program = struct.pack("=HxxxxxxQ", 1, ctypes.addressof(allow))
    syscall("prctl", 38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    syscall("prctl", 22, 2, program, 0, 0)  # PR_SET_SECCOMP
    socket.create_connection(("127.0.0.1", at.outsider["tcp4"])).close()


@attempt("workspace", blocked_by="EPERM", env={"PATH": "/usr/bin:/bin"})
def connect_from_many_threads_at_once(at: Ground) -> None:
    """Each waits for the answer to its own call; none may get that of another."""
    got: list[socket.socket] = []

    def ask() -> None:
        for _ in range(50):
            with suppress(PermissionError):
                got.append(socket.socket())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not got:
        raise PermissionError(1, "EPERM")
    socket.create_connection(("127.0.0.1", at.outsider["tcp4"])).close()


@attempt("workspace", "offline", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.no-network")
def send_a_datagram(at: Ground) -> None:
    """As a question to a name server is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"query", ("127.0.0.1", at.outsider["udp4"]))


@attempt("workspace", blocked_by="EPERM", kernel="IPv6 on its loopback")
def send_a_datagram_over_ipv6(at: Ground) -> None:
    if "udp6" not in at.outsider:
        raise OSError(97, "EAFNOSUPPORT")
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sender:
        sender.sendmsg([b"query"], [], 0, ("::1", at.outsider["udp6"]))


@attempt("workspace", blocked_by="EPERM")
def listen_for_connections(at: Ground) -> None:
    del at
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()


@attempt("workspace", blocked_by="EPERM EPROTONOSUPPORT", kernel="multipath TCP")
def connect_by_another_protocol(at: Ground) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as stream:
        stream.connect(("127.0.0.1", at.outsider["tcp4"]))


@attempt("workspace", "offline", "networked", blocked_by="EPERM EACCES", needs="root")
def open_a_raw_socket(at: Ground) -> None:
    del at
    socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()


@attempt("workspace", "networked", blocked_by="EPERM EACCES", needs="root")
@pytest.mark.requirement("security.sandbox.families")
def listen_to_every_packet(at: Ground) -> None:
    del at
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()


@attempt("workspace", blocked_by="EPERM")
def ask_the_kernel_for_its_interfaces(at: Ground) -> None:
    del at
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.bind((0, 0))


@attempt("workspace", "networked", blocked_by="EPERM", kernel="sockets to a hypervisor")
@pytest.mark.requirement("security.sandbox.families")
def open_a_socket_to_the_machine_around(at: Ground) -> None:
    del at
    socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()


@attempt("workspace", "networked", "offline", blocked_by="EPERM", kernel="ciphers by socket")
def open_a_socket_to_the_ciphers_of_the_kernel(at: Ground) -> None:
    del at
    socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close()


@attempt("workspace", "networked", "offline", blocked_by="EPERM", kernel="events by socket")
@pytest.mark.requirement("security.sandbox.families")
def listen_to_the_events_of_the_kernel(at: Ground) -> None:
    """Its sockets have many ends; with the network, only the one about routes is needed."""
    del at
    socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, 15).close()


@attempt("workspace", "networked", "offline", blocked_by="signal 31", needs="x86", kernel="32 bits")
@pytest.mark.requirement("security.sandbox.calls")
def open_a_socket_by_a_32_bit_call(at: Ground) -> None:
    """The same numbers mean other calls there: a filter has to look at the architecture first."""
    del at
    code = bytes.fromhex(
        "53"  # push rbx
        "4189c8"  # mov r8d, ecx
        "89f8"  # mov eax, edi
        "89f3"  # mov ebx, esi
        "89d1"  # mov ecx, edx
        "4489c2"  # mov edx, r8d
        "cd80"  # int 0x80
        "5b"  # pop rbx
        "c3"  # ret
    )
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    words = [ctypes.c_int] * 4
    call = ctypes.CFUNCTYPE(ctypes.c_int, *words)(ctypes.addressof(ctypes.c_char.from_buffer(page)))

    def open_socket() -> None:
        result = call(359, socket.AF_INET, socket.SOCK_STREAM, 0)
        if result < 0:
            raise OSError(-result, os.strerror(-result))

    in_a_child(open_socket)


@attempt("workspace", blocked_by="ENOSYS EPERM", needs="x86", kernel="the interface x32")
@pytest.mark.requirement("security.sandbox.calls")
def open_a_socket_by_a_number_of_x32(at: Ground) -> None:
    del at
    os.close(numbered(0x40000000 + 41, socket.AF_INET, socket.SOCK_STREAM, 0))


@attempt("workspace", "networked", "offline", blocked_by="EPERM ENOSYS")
@pytest.mark.requirement("security.sandbox.calls")
def open_a_ring_that_does_the_calls_instead(at: Ground) -> None:
    """What `io_uring` is asked to do passes by every filter."""
    del at
    parameters = ctypes.create_string_buffer(120)
    os.close(syscall("io_uring_setup", 1, parameters))
