"""Evasions of rules and of the dangerous list: noticed as promised, and all of them real."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.agent.approvals.dangerous import danger_of
from holdfast.agent.approvals.rules import PrefixRule, RuleSet, Ruling
from holdfast.agent.approvals.split import Split, split_command
from tests.unit.agent.approvals.evasions import EVASIONS, NOTICED, UNNOTICED, Evasion

_SECURITY = Path(__file__).parents[4] / "docs" / "security.md"

_NOTE = '#!/bin/sh\nprintf "%s\\n" "NAME $*" >> "$CALLS"\n'
_SUDO = """#!/bin/sh
while :; do case $1 in -u) shift 2;; -*) shift;; *) break;; esac; done
exec env "$@"
"""
"""Stands for sudo, which tests cannot use: runs the command as it is."""

_DRIVER = """
while read -r -d '' shell && read -r -d '' script; do
    number=$((number + 1))
    mkdir "$number"
    cd "$number"
    CALLS=$PWD/calls timeout 10 "$shell" -c "$script" > /dev/null 2>&1 < /dev/null
    cd ..
done
"""

_RULES = RuleSet(
    [
        PrefixRule(
            pattern=(("hostname",),),
            ruling=Ruling.FORBIDDEN,
            justification=None,
            outside_sandbox=False,
            source=None,
        )
    ]
)


def _script(evasion: Evasion, programs: Path) -> str:
    return evasion.script.replace("@BIN@", str(programs))


def _split(evasion: Evasion, programs: Path) -> Split:
    return split_command([evasion.shell, "-c", _script(evasion, programs)])


def _is_noticed(split: Split, target: str) -> bool:
    if target == "rm":
        return any(danger_of(words) for words in split.literals)
    return any(_RULES.match(words) for words in split.literals)


@pytest.mark.slow
@pytest.mark.requirement("approvals.evasions.real")
def test_every_evasion_runs_its_command(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in {"rm": _NOTE, "hostname": _NOTE, "sudo": _SUDO}.items():
        (programs / name).write_text(text.replace("NAME", name))
        (programs / name).chmod(0o755)
    evasions = [evasion for evasion in EVASIONS if shutil.which(evasion.shell)]
    runs = tmp_path / "runs"
    runs.mkdir()
    given = "".join(f"{e.shell}\0{_script(e, programs)}\0" for e in evasions)
    subprocess.run(
        ["bash", "-c", _DRIVER],
        input=given.encode(),
        cwd=runs,
        env={"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"},
        check=True,
    )
    silent = []
    for number, evasion in enumerate(evasions, 1):
        calls = runs / str(number) / "calls"
        text = calls.read_text() if calls.exists() else ""
        wanted = r"^rm (.* )?(-\w*f|--f)" if evasion.target == "rm" else r"^hostname\b"
        if not re.search(wanted, text, re.MULTILINE):
            silent.append((evasion.name, text))
    assert not silent, "\n".join(map(repr, silent))


@pytest.mark.requirement("approvals.evasions.noticed")
@pytest.mark.parametrize("evasion", NOTICED, ids=lambda evasion: evasion.name)
def test_a_promised_evasion_is_noticed(evasion: Evasion) -> None:
    split = _split(evasion, Path("/opt/programs"))
    assert _is_noticed(split, evasion.target), split
    assert split.unseen is None


@pytest.mark.requirement("approvals.evasions.unnoticed")
@pytest.mark.parametrize("evasion", UNNOTICED, ids=lambda evasion: evasion.name)
def test_another_evasion_gets_through(evasion: Evasion) -> None:
    split = _split(evasion, Path("/opt/programs"))
    assert not _is_noticed(split, evasion.target)
    assert split.unseen is None


@pytest.mark.requirement("security.rules.two-readers")
@pytest.mark.parametrize("evasion", EVASIONS, ids=lambda evasion: evasion.name)
def test_no_evasion_is_plain_with_something_else_in_it(evasion: Evasion) -> None:
    split = _split(evasion, Path("/opt/programs"))
    if split.plain:
        assert set(split.segments) <= set(split.literals)
    else:
        assert len(split.segments) == 1


@pytest.mark.requirement("approvals.split.bounded")
@pytest.mark.parametrize(
    ("shell", "script"),
    [
        # What dash runs of these is a string, an expression or a document to bash.
        ("sh", "echo $'\\'; rm -f x #'"),
        ("sh", "echo $[ ; rm -f x; echo ]"),
        ("sh", "cat <<E\nE\\\n\n'\nE\nrm -f x\n'"),
        ("zsh", "a=(b)rm -f x"),
        ("zsh", ". =(echo 'rm -f x')"),
        ("bash", "b['a[$(rm -f x)]']=1"),
        # Each runs `rm -f x` in one of these shells.
        ("bash", "${\\\nNOTHING:-rm} -f x"),
        ("bash", "${NOTHING\\\n:-rm} -f x"),
        ("bash", "${NOTHING:\\\n-rm} -f x"),
        ("bash", "(( [1 << 2 ))\nrm -f x\n2\n"),
        ("bash", "(( 1 ] << 2 ))\nrm -f x\n2\n"),
        ("bash", "((1 << 2)\\\n)\nrm -f x\n2\n"),
        ("bash", """"${NOTHING-$'rm'}" -f x"""),
        ("bash", ">&'$(rm -f x)'"),
        ("sh", "((1 << E))\n'\nE\nrm -f x\n#'"),
        ("sh", "<<'E\nF'\nE\nF\nrm -f x"),
        ("sh", "cat <<E\n$(#\\\nrm -f x\n)\nE"),
        ("bash", "echo '`)`rm -f x' | bash"),
        ("bash", "echo '`>`rm -f x' | bash"),
        ("zsh", "print 'rm\\ -f x' | sh"),
        ("zsh", "print ':\\C-Jrm -f x' | sh"),
        ("zsh", "print -P 'r%{%}m -f x' | sh"),
        ("zsh", "<->|rm -f x"),
        ("zsh", "{3<&0 rm -f x}"),
        ("zsh", "${NOTHING///rm} -f x"),
        ("bash", "${NOTHING/*/rm} -f x"),
        ("zsh", "print '<<a case a in a) rm -f x;; esac' | zsh"),
        ("zsh", "`'r\\\nm' -f x`"),
        ("zsh", "$=''rm -f x"),
        ("zsh", "${:-{rm,-f,x}}"),
        ("zsh", "${(L):-RM} -f x"),
        ("zsh", "${${:-arm}#a} -f x"),
        ("zsh", "rm &>| f -f x"),
        ("zsh", "rm -f\\"),
        ("zsh", "{#'\nrm -f x\n#'}"),
        ("zsh", "echo ${NOTHING#{} #}; rm -f x"),
        ("bash", "echo ${ rm -f x; }"),
        ("bash", "shopt -s expand_aliases; BASH_ALIASES[q]='rm -f'; eval 'q x'"),
        ("zsh", "typeset histchars='!^@'\necho @ '\nrm -f x\n@ '"),
        ("bash", "shopt -s expand_aliases\nalias c='#'\nc '\nrm -f x\n#'"),
        ("bash", "shopt -s expand_aliases\nalias c='cat <<E'\nc '\nE\nrm -f x\n#'"),
        ("bash", 'shopt -s expand_aliases\nalias q=\'echo "\'\nq ";rm -f x #"'),
        ("bash", "X=abc; : ${X:'a[$(rm -f x)]'}"),
        ("bash", "X=abc; : ${X:0:'a[`rm -f x`]'}"),
        ("bash", "X=abc; : ${X:${Y:-'a[$(rm -f x)]'}}"),
        ("bash", ": ${@:'a[$(rm -f x)]'}"),
        ("bash", ": $(( $'a[\\x24(rm -f x)]' ))"),
        ("bash", ": $(( ${Y:-'$(rm -f x)'} ))"),
        ("bash", "X='$(rm -f x)'; : \"${X@P}\""),
        ("bash", "bash -c ': \"${1@P}\"' a '$(rm -f x)'"),
        ("zsh", "X='$(rm -f x)'; : ${(e)X}"),
        ("zsh", "autoload -Uz zargs; zargs -I{} -- rm -- {} -f x"),
        ("bash", "PROMPT_COMMAND=('rm -f x') bash --norc -i <<< ''"),
        ("zsh", "coproc rm if -f"),
        ("zsh", "$é''rm -f x"),
        ("zsh", r"setopt promptsubst; print -P '$\(hostname)'"),
        ("zsh", "f(+hostname)"),
        ("zsh", "{commands[q]==rm; q -f}"),
        ("bash", "PS4='`cat <<< hostname | bash -'; set -x; :"),
        ("zsh", "${=x-bash -c 'rm -f x'}"),
        ("zsh", r"setopt promptsubst; print -P '$\x28hostname\xx)'"),
        ("bash", ": &!#& rm -f x"),
        ("sh", ": &|#; rm -f x"),
        ("zsh", '"$né"rm -f x'),
        ("zsh", "é=1 rm -f x"),
        ("zsh", "print -vé'[$(rm -f $((()) x)]' a"),
        ("zsh", "functions[q]='rm -f x'; q"),
        ("zsh", "functions=(q 'rm -f x'); q"),
        ("zsh", ": ${functions[q]::=rm -f x}; q"),
        ("zsh", "print -v'functions[q]' 'rm -f x'; q"),
        ("zsh", "read 'functions[q]' <<< 'rm -f x'; q"),
        ("zsh", "set -A functions q 'rm -f x'; q"),
        ("bash", "zsh -c 'commands[q]==rm; q -f x'"),
        ("zsh", ": *(e:'rm -f x':)"),
        ("zsh", ": f\\\n(e:'rm -f x':)"),
        ("zsh", ": ${~:-*(e:'rm -f x':)}"),
        ("zsh", "for i in *(oe:'rm -f x':); do :; done"),
        ("zsh", ": *(+hostname)"),
        ("bash", "timeout" + " -v" * 70 + " 5 rm -f x"),
        ("bash", "env" + " A=1" * 70 + " hostname"),
    ],
)
def test_what_cannot_be_decided_is_asked_about(shell: str, script: str) -> None:
    assert split_command([shell, "-c", script]).unseen is not None


@pytest.mark.parametrize(
    ("shell", "script"),
    [
        # Of zsh only.
        ("bash", 'echo "$né"; é=1'),
        ("zsh", 'echo été; git commit -m "größer als $x"; x=é'),
        ("bash", "commands=(a b); functions[1]=a"),
        ("bash", "shopt -s extglob; ls *.!(e:x)"),
        ("zsh", "ls *(.) **/*(om[1,3]); (( $#commands )); echo ${commands[git]} ${+functions[f]}"),
        # Signs that begin an expansion for others.
        ("bash", "awk '{ n[$1]++ } END { for (k in n) print k, n[k] }' f"),
        ("bash", "sed -n 's/[`]x[$(]y//p; s/a[0-9]*`//' f"),
        ("bash", "grep -E 'x[$(]|[`]' f"),
        ("bash", "perl -ne 'print $a[$i]{x}, qq(${y}`date`)' f"),
        ("bash", 'echo "${args[@]:1}" "${line:0:$((n - 1))}" ${x:(-1)} ${x: -1:"$n"}'),
        ("bash", "PS1='\\u@\\h:\\w$(__git_ps1) $ '"),
        ("bash", 'PROMPT_COMMAND="history -a; $PROMPT_COMMAND"'),
        ("bash", "find . -name '*.py' -printf '%s %p\\n' | sort -n | xargs -d '\\n' ls"),
        ("bash", 'find . -print0 | xargs -0 sh -c \'for f; do mv "$f" "${f%.a}"; done\' sh'),
    ],
)
def test_everyday_scripts_are_read_to_their_end(shell: str, script: str) -> None:
    assert split_command([shell, "-c", script]).unseen is None


def test_there_are_enough_evasions() -> None:
    assert len(EVASIONS) >= 80
    assert len({evasion.name for evasion in EVASIONS}) == len(EVASIONS)


@pytest.mark.requirement("approvals.evasions.listed")
def test_the_documentation_lists_what_is_not_noticed() -> None:
    text = _SECURITY.read_text().partition("### What cannot be seen")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| `(.+)` \|$", text, re.MULTILINE)
    listed = {name: script.replace("\\|", "|").strip() for name, script in rows}
    assert listed == {e.name: e.script.strip().replace("@BIN@", "/bin") for e in UNNOTICED}
