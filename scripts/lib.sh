# shellcheck shell=bash
# Shared by the scripts: the place of the project, its virtual environment, the real Codex.
# Sourced, not run. Messages go to stderr: stdout belongs to the programs.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV="$ROOT/.venv"

# Some machines keep Python from storing compiled code. Tests start hundreds of servers, and
# each would compile the package again.
unset PYTHONDONTWRITEBYTECODE

# The releases whose behaviour Holdfast is compared with, the one that it follows first.
CODEX_VERSIONS=(0.169.0 0.166.0)

say() { printf 'holdfast: %s\n' "$*" >&2; }

die() {
    say "$@"
    exit 1
}

can_install_system_packages() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

# Installs Debian packages, or prints those that the user has to install.
install_system_packages() {
    local output
    can_install_system_packages \
        || die "please install $* first, for example: sudo apt-get install $*"
    say "installing $*"
    # A new machine has no package lists, an old one may have stale ones.
    output=$(apt_get install "$@" 2>&1) \
        || output=$(apt_get update 2>&1 && apt_get install "$@" 2>&1) \
        || die "apt-get could not install $*:" "$output"
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends "$@" </dev/null
}

# Installs bubblewrap if it is missing and can be installed. Without it a server works except
# for sandboxes, which it refuses: one line says so.
install_sandbox() {
    local why=
    if ! command -v bwrap >/dev/null && can_install_system_packages; then
        # Of two scripts at once, the second waits and finds the work done.
        exec 9>"$ROOT/.venv.lock"
        flock 9
        if ! command -v bwrap >/dev/null; then
            say "installing bubblewrap"
            # The last line of apt-get has the reason.
            if why=$(install_system_packages bubblewrap 2>&1); then
                why=
            else
                why=${why##*$'\n'}
                why=" (${why#holdfast: })"
            fi
        fi
        exec 9>&-
    fi
    command -v bwrap >/dev/null \
        || say "commands that ask for a sandbox are refused until you install bubblewrap:" \
            "sudo apt-get install bubblewrap$why"
}

# Prints the Debian packages of the missing programs that only tests need.
missing_test_packages() {
    local pair
    for pair in sshd:openssh-server ssh:openssh-client bwrap:bubblewrap \
        qemu-aarch64:qemu-user zsh:zsh \
        x86_64-linux-gnu-as:binutils-x86-64-linux-gnu \
        aarch64-linux-gnu-as:binutils-aarch64-linux-gnu; do
        PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null || echo "${pair#*:}"
    done
}

# Installs those programs if that is allowed; without them some tests are skipped.
install_test_packages() {
    local missing policy=/usr/sbin/policy-rc.d
    if [ -z "$(missing_test_packages)" ] || ! can_install_system_packages; then
        return
    fi
    # Of two scripts at once, the second waits and finds the work done.
    exec 9>"$ROOT/.venv.lock"
    flock 9
    mapfile -t missing < <(missing_test_packages)
    # The tests start their own sshd; the package must not start the system's.
    if [ "${#missing[@]}" -eq 0 ]; then
        :
    elif [ -e "$policy" ]; then
        install_system_packages "${missing[@]}"
    else
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        (install_system_packages "${missing[@]}") || { rm -f "$policy" && exit 1; }
        rm -f "$policy"
    fi
    exec 9>&-
}

# Prints the first interpreter on PATH that is new enough.
find_python() {
    local name
    for name in python3 python3.14 python3.13 python3.12 python3.11; do
        if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$name"
            return
        fi
    done
    return 1
}

create_venv() {
    local python
    python=$(find_python) || die "Python 3.11 or newer is needed, and none is on PATH"
    # Debian ships this part of Python in a separate package.
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        install_system_packages \
            "$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    fi
    say "creating .venv with $("$python" --version)"
    "$python" -m venv --clear "$VENV" >&2
    echo "$VENV" >"$VENV/.made-for"
}

# True if the environment is complete and was made for this path: the programs in it
# name their interpreter by its full path, so a copy of the directory does not work.
venv_works() {
    [ "$(cat "$VENV/.made-for" 2>/dev/null)" = "$VENV" ] \
        && "$VENV/bin/python" -m pip --version >/dev/null 2>&1
}

# Makes pip, uv and npm trust the certificates of the system; their own lists lack the
# certificate of a company's proxy.
trust_system_certificates() {
    local bundle=/etc/ssl/certs/ca-certificates.crt
    if [ ! -r "$bundle" ] && can_install_system_packages; then
        install_system_packages ca-certificates
    fi
    if [ -r "$bundle" ]; then
        export PIP_CERT="${PIP_CERT:-$bundle}" UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"
        export NODE_EXTRA_CA_CERTS="${NODE_EXTRA_CA_CERTS:-$bundle}"
    fi
}

# Digest of everything that the environment is made from.
fingerprint() {
    { echo "$VENV" && cat "$ROOT/pyproject.toml" "$ROOT"/requirements/*.txt; } \
        | sha256sum | cut -d' ' -f1
}

is_installed() { [ -x "$VENV/bin/python" ] && [ "$(cat "$VENV/.has-$1" 2>/dev/null)" = "$2" ]; }

# Brings .venv up to date with `run` (the package's requirements), `test` (also those of its
# unit tests) or `dev` (everything, including programs of the system for the other tests).
setup() {
    local kind=$1 wanted
    if [ "$kind" = dev ]; then
        install_test_packages
    fi
    wanted=$(fingerprint)
    if is_installed "$kind" "$wanted"; then
        return
    fi
    # Of two scripts at once, the second waits and finds the work done.
    exec 9>"$ROOT/.venv.lock"
    flock 9
    is_installed "$kind" "$wanted" || install "$kind" "$wanted"
    exec 9>&-
}

install() {
    local kind=$1 wanted=$2
    trust_system_certificates
    venv_works || create_venv
    say "installing what Holdfast needs ($kind)"
    rm -f "$VENV"/.has-{run,test,dev}
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        -r "$ROOT/requirements/tools.txt" >&2
    # For tests, Python compiles what they import, which is less than half of it all.
    case $kind in
        dev) in_venv sync --require-hashes "$ROOT"/requirements/{tools,dev,docs}.txt ;;
        test) in_venv sync --require-hashes "$ROOT"/requirements/{tools,dev}.txt ;;
        run) in_venv install --compile-bytecode --require-hashes -r "$ROOT/requirements/run.txt" ;;
    esac
    in_venv install --no-deps --no-build-isolation --editable "$ROOT"
    "$VENV/bin/python" -m compileall -q "$ROOT/src"
    local had
    for had in run test dev; do
        echo "$wanted" >"$VENV/.has-$had"
        [ "$had" != "$kind" ] || break
    done
}

in_venv() { VIRTUAL_ENV="$VENV" "$VENV/bin/uv" pip --quiet "$@" >&2; }

# Sets and exports CODEX_BINS, the programs of the real Codex in these versions, or in all of
# CODEX_VERSIONS, separated by colons; and CODEX_BIN, the first of them. Fetches missing ones
# with npm. If CODEX_BIN is given, it is the only one, whatever its version.
# If one is not available, it prints the reason and fails; the others are still set.
find_codex() {
    local version path status=0
    if [ -n "${CODEX_BIN:-}" ]; then
        [ -x "$CODEX_BIN" ] || die "CODEX_BIN is not a program: $CODEX_BIN"
        CODEX_BINS=$CODEX_BIN
    else
        CODEX_BINS=
        for version in "${@:-${CODEX_VERSIONS[@]}}"; do
            if path=$(codex_of_version "$version"); then
                CODEX_BINS+=${CODEX_BINS:+:}$path
            else
                status=1
            fi
        done
        CODEX_BIN=${CODEX_BINS%%:*}
    fi
    export CODEX_BIN CODEX_BINS
    return "$status"
}

# Prints the program of Codex in version $1; fetches it if it is missing.
codex_of_version() {
    local home="$ROOT/.codex-$1"
    installed_codex "$home" && return
    if ! command -v npm >/dev/null; then
        say "the real Codex $1 is missing: there is neither CODEX_BIN nor npm"
        return 1
    fi
    if ! fetch_codex "$1" "$home" || ! installed_codex "$home"; then
        say "npm could not fetch the real Codex $1"
        return 1
    fi
}

# Puts Codex in version $1 into the directory $2, completely or not at all.
fetch_codex() {
    say "fetching the real Codex $1 with npm"
    trust_system_certificates
    rm -rf "$2" "$2.part"
    mkdir -p "$2.part"
    # One retry only: a machine without network should fail soon.
    npm install --prefix "$2.part" --no-save --no-audit --no-fund --fetch-retries=1 \
        --loglevel=error "@openai/codex@$1" </dev/null >&2 \
        && mv "$2.part" "$2"
}

installed_codex() {
    local path
    for path in "$1"/node_modules/@openai/codex-linux-*/vendor/*/bin/codex; do
        if [ -x "$path" ]; then
            echo "$path"
            return
        fi
    done
    return 1
}

# As find_codex, but first installs npm if it is missing and can be installed.
require_codex() {
    if [ -z "${CODEX_BIN:-}" ] && ! command -v npm >/dev/null && can_install_system_packages; then
        install_system_packages nodejs npm
    fi
    find_codex "$@" || die "set CODEX_BIN to a Codex ${CODEX_VERSIONS[0]}, or install npm"
}
