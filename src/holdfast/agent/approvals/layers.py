"""
Finds the rules files of all layers and joins their rules.

From the lowest to the highest precedence:

1. rules built into the program
2. `rules/*.rules` in the home of Holdfast
3. `.holdfast/rules/*.rules` of the project
4. explicitly named files
5. the managed requirements of the machine, which can only restrict

The files of a directory are sorted by name.

All rules apply, and the strictest decides, so precedence only matters for `host_executable`. A
broken file only disables itself; `RuleSet.broken` lists it.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from holdfast.agent.approvals.requirements import load_requirements
from holdfast.agent.approvals.rules import BrokenFile, RuleSet, RulesLayer, Ruling
from holdfast.agent.approvals.starlark import RulesFile, load_files
from holdfast.base.own_files import keep_unchanged
from holdfast.base.system_text import system_text

__all__ = ["MAX_FILES", "find_rules_files", "load_rules"]

MAX_FILES: Final = 200
"""Most files in one directory of rules; further ones count as broken."""

_SUFFIX: Final = ".rules"


def load_rules(
    *,
    home: Path | None = None,
    project: Path | None = None,
    explicit: Sequence[str | Path] = (),
    built_in: RuleSet | None = None,
    requirements: Path | None = None,
    trust_project: bool = False,
) -> RuleSet:
    """
    Load the rules of all layers.

    Unusable rules files are listed in `RuleSet.broken`; only broken requirements raise. The call
    reads files and waits for a child process: use a thread where that matters.

    Args:
        home: The home of Holdfast, with a directory `rules`.
        project: The project's directory, with a directory `.holdfast/rules`.
        explicit: Further files.
        built_in: Rules with the lowest precedence.
        requirements: The file of managed requirements, such as `REQUIREMENTS_FILE`; it may be
            missing.
        trust_project: True if rules of the project may relax anything. Commands in the
            workspace can write these files, so otherwise only prompt and forbidden rules
            count, `host_executable` and allow rules do not, and links out of the project
            are not followed.

    Raises:
        InvalidConfig: The requirements cannot be used, so prohibitions could be missing.
    """
    files, broken = _find(home, project, explicit, trust_project=trust_project)
    for path in (*explicit, *(() if home is None else (home / "rules",))):
        keep_unchanged(path)
    sets = [] if built_in is None else [built_in]
    for file, loaded in zip(files, load_files(files), strict=True):
        if isinstance(loaded, BrokenFile):
            broken.append(loaded)
        elif file.layer is RulesLayer.PROJECT and not trust_project:
            sets.append(_restrictions(loaded))
        else:
            sets.append(loaded)
    if broken:
        sets.append(RuleSet(broken=broken))
    if requirements is not None:
        sets.append(load_requirements(requirements))
    return RuleSet.join(sets)


def find_rules_files(
    *,
    home: Path | None = None,
    project: Path | None = None,
    explicit: Sequence[str | Path] = (),
) -> list[RulesFile]:
    """Return the rules files of all layers, from the lowest to the highest precedence."""
    return _find(home, project, explicit)[0]


def _find(
    home: Path | None,
    project: Path | None,
    explicit: Sequence[str | Path],
    *,
    trust_project: bool = False,
) -> tuple[list[RulesFile], list[BrokenFile]]:
    """Return the files to load, and unusable directories and files."""
    files: list[RulesFile] = []
    broken: list[BrokenFile] = []
    directories = (
        (home, "rules", RulesLayer.HOME),
        (project, ".holdfast/rules", RulesLayer.PROJECT),
    )
    for base, below, layer in directories:
        if base is None:
            continue
        directory = base / below
        try:
            names = sorted(name for name in os.listdir(directory) if name.endswith(_SUFFIX))
        except FileNotFoundError:
            continue
        except OSError as error:
            reason = system_text(error)
            broken.append(BrokenFile(path=str(directory), error=reason, layer=layer, unread=True))
            continue
        within = None
        if layer is RulesLayer.PROJECT and not trust_project:
            within = os.path.realpath(base)
        files += (RulesFile(str(directory / name), layer, within) for name in names[:MAX_FILES])
        broken += _too_many(directory, names[MAX_FILES:], layer)
    files += (RulesFile(str(path), RulesLayer.EXPLICIT) for path in explicit)
    return files, broken


def _too_many(directory: Path, names: Iterable[str], layer: RulesLayer) -> list[BrokenFile]:
    error = f"not read: {directory} has more than {MAX_FILES} rules files"
    return [
        BrokenFile(path=str(directory / name), error=error, layer=layer, unread=True)
        for name in names
    ]


def _restrictions(rules: RuleSet) -> RuleSet:
    """Return the rules that can only make a decision stricter."""
    return RuleSet(
        (rule for rule in rules.prefix_rules if rule.ruling is not Ruling.ALLOW),
        network_rules=(rule for rule in rules.network_rules if rule.ruling is not Ruling.ALLOW),
    )
