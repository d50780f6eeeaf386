"""Files of the kernel that have to be covered in a sandbox."""

from pathlib import Path

from holdfast.engine.sandbox.bubblewrap.support import writable_settings


def test_files_of_the_kernel_that_can_be_written_are_found(tmp_path: Path) -> None:
    for name in ("acpi/wakeup", "1/oom_score_adj", "sys/kernel/x", "cpuinfo", "mtrr", "a/b/c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "self").symlink_to("1")
    for name in ("cpuinfo", "a/b/c"):
        (tmp_path / name).chmod(0o444)

    found = writable_settings(str(tmp_path))

    assert found == (f"{tmp_path}/acpi", f"{tmp_path}/mtrr")


def test_where_the_kernel_shows_nothing_there_is_nothing_to_cover(tmp_path: Path) -> None:
    assert writable_settings(str(tmp_path / "missing")) == ()
