"""Sockets of this machine: servers beside the sandbox, and descriptors sent to and fro."""

import os
import socket

import pytest

from tests.breakout.inside import Ground, send_message, unix_address
from tests.breakout.table import attempt, unless_landlock


@attempt("read-only", "workspace", "offline", "narrow", blocked_by="EPERM ENOENT")
@pytest.mark.requirement("security.sandbox.no-network")
def connect_to_a_socket_by_its_path(at: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(at.outsider["stream"])


@attempt(
    "networked",
    blocked_by="EPERM",
    gap="with the network, sockets of other programs that can be seen can be used",
)
def connect_to_a_socket_by_its_path_with_the_network(at: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(at.outsider["stream"])


@attempt("workspace", blocked_by="EPERM")
def connect_to_a_socket_of_packets(at: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stream:
        stream.connect(at.outsider["seqpacket"])


@attempt("workspace", blocked_by="EPERM ECONNREFUSED")
@pytest.mark.requirement("security.sandbox.no-network")
def connect_to_a_socket_without_a_path(at: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect("\0" + at.outsider["abstract"][1:])


@attempt(
    "networked",
    blocked_by="EPERM",
    gap=unless_landlock(6, "with the network, sockets without a path are those of the host"),
)
@pytest.mark.requirement("security.sandbox.abstract")
def connect_to_a_socket_without_a_path_with_the_network(at: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect("\0" + at.outsider["abstract"][1:])


@attempt(
    "networked",
    blocked_by="EPERM",
    gap=unless_landlock(6, "with the network, sockets without a path are those of the host"),
)
@pytest.mark.requirement("security.sandbox.abstract")
def send_a_message_to_a_socket_without_a_path_with_the_network(at: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        send_message(sender.fileno(), b"x", address=unix_address(at.outsider["abstract_dgram"]))


@attempt("workspace", blocked_by="EPERM")
def be_handed_a_descriptor_by_a_server(at: Ground) -> None:
    """It hands everybody one that may write to a file outside."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.connect(at.outsider["stream"])
        _, descriptors, _, _ = socket.recv_fds(stream, 1, 1)
        os.write(descriptors[0], b"x")


@attempt("workspace", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.no-network")
def send_a_datagram_to_a_path(at: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"x", at.outsider["dgram"])


@attempt("read-only", "workspace", "offline", "narrow", blocked_by="EPERM")
def send_a_message_with_an_address(at: Ground) -> None:
    """`sendmsg` names the receiver in memory, where a filter cannot look."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        send_message(sender.fileno(), b"x", address=unix_address(at.outsider["dgram"]))


@attempt("workspace", blocked_by="EPERM ECONNREFUSED")
def send_a_message_with_an_address_without_a_path(at: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        send_message(sender.fileno(), b"x", address=unix_address(at.outsider["abstract_dgram"]))


@attempt("workspace", blocked_by="EPERM")
def send_a_descriptor_with_an_address(at: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        fd = os.open(f"{at.work}/notes", os.O_RDWR)
        address = unix_address(at.outsider["dgram"])
        send_message(sender.fileno(), b"x", address=address, descriptor=fd)


@attempt("workspace", blocked_by="EPERM")
def send_a_message_from_a_raw_socket(at: Ground) -> None:
    """The kernel makes a socket of datagrams of it, whatever a filter knows by that name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_RAW) as sender:
        send_message(sender.fileno(), b"x", address=unix_address(at.outsider["dgram"]))


@attempt("read-only", "workspace", "offline", "narrow", blocked_by="EPERM")
@pytest.mark.requirement("security.sandbox.pairs")
def send_a_message_from_one_of_a_pair(at: Ground) -> None:
    """A pair of datagram sockets is connected, and yet sends wherever it is told to."""
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, other:
        send_message(ours.fileno(), b"x", address=unix_address(at.outsider["dgram"]))


@attempt("workspace", blocked_by="EPERM")
def send_a_descriptor_from_one_of_a_raw_pair(at: Ground) -> None:
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)
    with ours, other:
        fd = os.open(f"{at.work}/notes", os.O_RDWR)
        address = unix_address(at.outsider["dgram"])
        send_message(ours.fileno(), b"x", address=address, descriptor=fd)


@attempt("workspace", blocked_by="EPERM")
def wait_for_others_to_connect(at: Ground) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"{at.work}/mine")
        listener.listen()
