"""Mounts as the kernel lists them, compared with a plan."""

import pytest

from holdfast.engine.sandbox.bubblewrap.mount_check import Planned, first_mismatch, read_table

HOST = """\
21 1 8:1 / / rw,relatime - ext4 /dev/root rw
22 21 0:5 / /dev rw - devtmpfs udev rw
23 21 0:6 / /proc rw - proc proc rw
24 21 8:2 /@data /srv rw shared:7 - btrfs /dev/data rw
"""

INSIDE = """\
81 1 8:1 / / ro,nosuid,relatime - ext4 /dev/root rw
82 81 0:90 / /dev rw,nosuid - tmpfs tmpfs rw
83 82 0:5 /null /dev/null rw,nosuid - devtmpfs udev rw
84 81 0:91 / /proc rw - proc proc rw
85 81 8:2 /@data /srv ro - btrfs /dev/data rw
86 85 8:2 /@data/ws /srv/ws rw - btrfs /dev/data rw
87 86 8:2 /@data/ws/sub /srv/ws/sub rw - btrfs /dev/data rw
88 87 0:92 /bindfileX /srv/ws/sub/key ro - tmpfs tmpfs rw
89 86 8:2 /@data/ws/.git /srv/ws/.git ro - btrfs /dev/data rw
"""

PLAN = (
    Planned("/srv/ws", "write"),
    Planned("/srv/ws/sub", "write"),
    Planned("/srv/ws/sub/key", "mask"),
    Planned("/srv/ws/.git", "read"),
)

OUTSIDE = "/@data/out"


def found(inside: str, plan: tuple[Planned, ...] = PLAN, host: str = HOST) -> str | None:
    return first_mismatch(plan, read_table(inside), read_table(host))


def line(number: int) -> str:
    return next(row for row in INSIDE.splitlines() if row.startswith(f"{number} ")) + "\n"


def test_what_is_as_planned_has_no_fault() -> None:
    assert found(INSIDE) is None


@pytest.mark.requirement("sandbox.verified")
@pytest.mark.parametrize(
    ("number", "was", "became", "path"),
    [
        # A link was in the place of what was to be mounted.
        (87, "/@data/ws/sub ", f"{OUTSIDE} ", "/srv/ws/sub"),
        (89, "/@data/ws/.git ", f"{OUTSIDE} ", "/srv/ws/.git"),
        (87, " 8:2 ", " 8:3 ", "/srv/ws/sub"),
        # In the place of where it was to be mounted.
        (87, " /srv/ws/sub ", " /srv/out ", "/srv/ws/sub"),
        (88, " /srv/ws/sub/key ", " /srv/out/key ", "/srv/ws/sub/key"),
        (89, " /srv/ws/.git ", " /srv/out ", "/srv/ws/.git"),
        # It is not what it was to be.
        (88, " ro ", " rw ", "/srv/ws/sub/key"),
        (89, " ro ", " rw ", "/srv/ws/.git"),
        (88, "0:92 /bindfileX", "8:2 /@data/ws/sub/key", "/srv/ws/sub/key"),
        (87, "/@data/ws/sub ", "/@data/ws/sub//deleted ", "/srv/ws/sub"),
        # Something else can be written to.
        (85, " ro ", " rw ", "/srv"),
        (81, " ro,", " rw,", "/"),
    ],
)
def test_a_mount_that_is_not_as_planned_is_found(
    number: int, was: str, became: str, path: str
) -> None:
    row = line(number)
    assert was in row
    assert found(INSIDE.replace(row, row.replace(was, became))) == path


@pytest.mark.requirement("sandbox.verified")
def test_what_is_read_only_outside_is_so_inside() -> None:
    """As the disk of a container, and a workspace on it."""
    closed = HOST.replace("/srv rw", "/srv ro")
    inside = INSIDE.replace("/srv/ws rw", "/srv/ws ro").replace("/srv/ws/sub rw", "/srv/ws/sub ro")
    assert found(inside, host=closed) is None
    assert found(inside.replace("/@data/ws/sub ", "/@data/out "), host=closed) == "/srv/ws/sub"
    # It cannot be writable, so this is something else.
    assert found(INSIDE, host=closed) == "/srv/ws"


def test_a_mount_of_the_host_below_a_writable_one_is_fine() -> None:
    row = "25 24 8:9 / /srv/ws/volume rw - ext4 /dev/volume rw\n"
    assert found(INSIDE + row.replace("25 24", "90 86"), host=HOST + row) is None
    moved = row.replace("25 24", "90 86").replace(" / /srv", " /other /srv")
    assert found(INSIDE + moved, host=HOST + row) == "/srv/ws/volume"


def test_a_mount_of_the_host_that_nobody_gets_to_may_stay_as_it_is() -> None:
    row = "25 24 8:9 / /srv/secret/volume rw - ext4 /dev/volume rw\n"
    inside, host = read_table(INSIDE + row), read_table(HOST + row)
    moved = read_table(INSIDE + row.replace(" / /srv", " /other /srv"))

    assert first_mismatch(PLAN, inside, host) == "/srv/secret/volume"
    assert (
        first_mismatch(PLAN, inside, host, hidden=lambda path: path == "/srv/secret/volume") is None
    )
    assert first_mismatch(PLAN, moved, host, hidden=lambda path: True) == "/srv/secret/volume"


def test_a_mount_of_the_host_is_no_mask() -> None:
    row = "25 24 8:9 / /srv/ws/sub/key ro - ext4 /dev/volume rw\n"
    assert found(INSIDE.replace(line(88), row), host=HOST + row) == "/srv/ws/sub/key"
    assert found(INSIDE + "91" + line(88)[2:], host=HOST + row) is None


def test_what_is_mounted_last_lies_on_top() -> None:
    assert found(line(87).replace("/@data/ws/sub ", "/x ") + INSIDE) is None


def test_where_all_may_be_written_only_the_rest_is_looked_at() -> None:
    inside = INSIDE.replace(" ro,nosuid,relatime", " rw,relatime").replace(line(85), "")
    plan = (Planned("/", "write"), *PLAN)
    assert found(inside, plan) is None
    assert found(inside.replace(line(88), ""), plan) == "/srv/ws/sub/key"


def test_strange_names_are_read_as_they_are() -> None:
    row = "86 85 8:2 /@data/a\\040b\\134c /srv/a\\040b\\134c rw - btrfs /dev/data rw\n"
    assert found(INSIDE.replace(line(86), row), (Planned("/srv/a b\\c", "write"),)) == "/srv/ws/sub"
    only = "".join(line(number) for number in (81, 82, 83, 84, 85)) + row
    assert found(only, (Planned("/srv/a b\\c", "write"),)) is None
