"""
Assembles a list of system calls into an executable, for the steps right before an exec.

Some parts of a sandbox can only be set up from inside, by a process that is no longer bubblewrap
and not yet the command. Starting an interpreter there would take longer than all the rest. So that
process runs a program that only walks through a table: make a system call, store the result,
continue. The table says where arguments come from, where results go, and what follows an error. The
walk is about a hundred bytes of machine code, the same for every table. This module runs nothing.

The file is an ELF executable with two loaded segments. Addresses are those in its memory:

    offset   address
    0x000    0x400000   ELF header, three program headers     read, execute
    0x100    0x400100   the walk: the code of `_LISTINGS`
    0x200    0x410200   RESULT, and all below                  read, write
             +0         result of the last call (4 bytes), the number 1 (4 bytes)
             +8         address of the first record
             +16        ENVIRONMENT: address of the list of variables
             +24        ARGUMENTS: address of the list of arguments
             +32        data: texts, structures and constants, each a multiple of 8
                        records, one for each call, 64 bytes each
                        rules, 16 bytes each

A record is a row of eight numbers of 8 bytes. The arguments are given as addresses, so that
one can be the result of an earlier call; a constant is stored among the data:

    +0       +8 ... +40                   +48              +56
    number   addresses of 5 arguments     where the        address of
    of call  (of a 0 for one left out)    result goes      the first rule

A call that succeeds is followed by the next record. After a failed call, its rules are read in
order. The first rule for that error applies; the last one is for any error (`ANY`):

    +0       +8
    error    address of the record that follows

The code walks like this, with `record` in rbx (x86-64) or x21 (aarch64):

    record = RESULT[8]
    next:    result = system_call(record.number, *record.arguments)
             store result in RESULT and in record.result
             if result >= 0: record += 64, go to next
             for rule in record.rules:
                 if rule.error in (0, -result): record = rule.record, go to next
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from holdfast.engine.linux.syscall_numbers import MACHINES

__all__ = [
    "ANY",
    "ARGUMENTS",
    "ENVIRONMENT",
    "RESULT",
    "At",
    "CallProgram",
    "Label",
    "Template",
]

# Address of the ELF header in memory.
_BASE: Final = 0x400000

# Offsets of the code and of the table in the file.
_CODE_AT: Final = 0x100
_TABLE_AT: Final = 0x200

RESULT: Final = _BASE + 0x10000 + _TABLE_AT
"""
Address of the last call's result, in 4 bytes; the 4 bytes after them are 1.

The code has this address as a constant. Its offset in a page equals that in the file, so that the
kernel can map it; 64 KiB are the largest pages of any supported kernel.
"""

ANY: Final = 0
"""Error number that stands for all errors."""

# Last result, the number 1, and the addresses of the first record, environment and arguments.
_FIRST: Final = struct.Struct("<iiQQQ")
# Call number, addresses of five arguments, of the result and of the first rule.
_RECORD: Final = struct.Struct("<8Q")
# Error number, and address of the record to continue with; the last rule of a call is for `ANY`.
_RULE: Final = struct.Struct("<QQ")

# No call here needs six arguments, and records of 64 bytes keep the code short.
_MOST_ARGUMENTS: Final = 5

# Arguments of `waitid`: P_PID, without waiting and without reaping; and the size of siginfo_t.
_ONE_PROCESS: Final = 1
_LOOK: Final = os.WEXITED | os.WNOHANG | os.WNOWAIT
_SIGINFO: Final = 128
_WORD: Final = struct.Struct("<Q")


class At(NamedTuple):
    """Argument that is read from an address when the call is made."""

    address: int


ENVIRONMENT: Final = At(RESULT + 16)
"""Environment of the program, to be passed on by `execve`."""

ARGUMENTS: Final = At(RESULT + 24)
"""Arguments of the program, its own name first."""


def _code(listing: str) -> bytes:
    """Return the bytes of a listing: the first word of each line that is not a label."""
    words = [line.split()[0] for line in listing.split("\n") if line.strip()]
    return bytes.fromhex("".join(word for word in words if not word.endswith(":")))


# The code for each architecture: its bytes, the instruction, and a remark after `;`.
_LISTINGS: Final = {
    # In the syntax of GNU as, Intel flavour; a test assembles it and compares the bytes.
    "x86_64": """
        4c8b2424          mov   r12, [rsp]
        4e8d64e410        lea   r12, [rsp+r12*8+16]  ; the environment, after the arguments
        41bd00024100      mov   r13d, offset RESULT
        4d896510          mov   [r13+16], r12        ; ENVIRONMENT
        488d442408        lea   rax, [rsp+8]
        49894518          mov   [r13+24], rax        ; ARGUMENTS
        498b5d08          mov   rbx, [r13+8]         ; the first record
        next:
        8b03              mov   eax, [rbx]
        488b7b08          mov   rdi, [rbx+8]
        488b3f            mov   rdi, [rdi]
        488b7310          mov   rsi, [rbx+16]
        488b36            mov   rsi, [rsi]
        488b5318          mov   rdx, [rbx+24]
        488b12            mov   rdx, [rdx]
        4c8b5320          mov   r10, [rbx+32]
        4d8b12            mov   r10, [r10]
        4c8b4328          mov   r8, [rbx+40]
        4d8b00            mov   r8, [r8]
        0f05              syscall
        41894500          mov   [r13], eax
        488b4b30          mov   rcx, [rbx+48]
        8901              mov   [rcx], eax
        85c0              test  eax, eax
        7806              js    failed
        4883c340          add   rbx, 64
        ebc5              jmp   next
        failed:
        488b4b38          mov   rcx, [rbx+56]
        f7d8              neg   eax
        look:
        8b11              mov   edx, [rcx]
        488b5908          mov   rbx, [rcx+8]
        4883c110          add   rcx, 16
        85d2              test  edx, edx
        74b1              je    next
        39c2              cmp   edx, eax
        75ee              jne   look
        ebab              jmp   next
    """,
    "aarch64": """
        f30340f9          ldr   x19, [sp]
        f36f338b          add   x19, sp, x19, lsl #3
        73420091          add   x19, x19, #16        ; the environment, after the arguments
        144080d2          movz  x20, #(RESULT & 0xffff)
        3408a0f2          movk  x20, #(RESULT >> 16), lsl #16
        930a00f9          str   x19, [x20, #16]      ; ENVIRONMENT
        f6230091          add   x22, sp, #8
        960e00f9          str   x22, [x20, #24]      ; ARGUMENTS
        950640f9          ldr   x21, [x20, #8]       ; the first record
        next:
        a80240a9          ldp   x8, x0, [x21]
        a10a41a9          ldp   x1, x2, [x21, #16]
        a31242a9          ldp   x3, x4, [x21, #32]
        000040f9          ldr   x0, [x0]
        210040f9          ldr   x1, [x1]
        420040f9          ldr   x2, [x2]
        630040f9          ldr   x3, [x3]
        840040f9          ldr   x4, [x4]
        010000d4          svc   #0
        a92a43a9          ldp   x9, x10, [x21, #48]
        800200b9          str   w0, [x20]
        200100b9          str   w0, [x9]
        6000f837          tbnz  w0, #31, failed
        b5020191          add   x21, x21, #64
        f2ffff17          b     next
        failed:
        e003004b          neg   w0, w0
        look:
        490140b9          ldr   w9, [x10]
        550540f9          ldr   x21, [x10, #8]
        4a410091          add   x10, x10, #16
        a9fdff34          cbz   w9, next
        3f01006b          cmp   w9, w0
        61ffff54          b.ne  look
        eaffff17          b     next
    """,
}

_WALKS: Final = {machine: _code(listing) for machine, listing in _LISTINGS.items()}

# Closing this descriptor always fails with EBADF: a jump that needs no other instruction.
_NO_DESCRIPTOR: Final = 0xFFFFFFFF

# EM_X86_64 and EM_AARCH64.
_ELF_MACHINES: Final = {"x86_64": 62, "aarch64": 183}

_ELF_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_ELF_SEGMENT: Final = struct.Struct("<IIQQQQQQ")
# ELFCLASS64, little-endian, version 1.
_IDENTITY: Final = b"\x7fELF\x02\x01\x01"
# ET_EXEC: fixed addresses, so that no relocation is needed.
_EXECUTABLE: Final = 2
# PT_LOAD and PT_GNU_STACK; the latter makes the stack non-executable.
_LOADED, _STACK = 1, 0x6474E551
_X, _W, _R = 1, 2, 4
# The largest page size of the supported architectures.
_ALIGNMENT: Final = 0x10000


class Label:
    """Position in the list of calls to jump to; it may be bound later."""

    def __init__(self) -> None:
        self.at: int | None = None


class _Call(NamedTuple):
    """System call of the list, with what follows if it fails."""

    number: int
    arguments: tuple[int, ...]
    """Addresses of the arguments."""
    result: int
    """Address for the result."""
    failed: Mapping[int, Label]
    """Labels by error number."""
    leaves_to: int | None = None
    """Address of a continuation that follows this call, which always fails."""


class Template(NamedTuple):
    """An assembled program with words that are filled in for each use."""

    machine: str
    content: bytes
    """Content of the file after the code."""
    blanks: Mapping[str, Sequence[int]]
    """Offsets in the content of the words to fill in, by their names."""

    @property
    def end(self) -> int:
        """Address of what follows the program."""
        return RESULT + len(self.content)

    def image(self, words: Mapping[str, int], behind: bytes) -> bytes:
        """
        Return the executable file.

        Args:
            words: The words that are filled in, by their names.
            behind: Bytes to append, at the address `end`.
        """
        # A copy, since programs share the template.
        content = bytearray(self.content)
        for name, offsets in self.blanks.items():
            for offset in offsets:
                _WORD.pack_into(content, offset, words[name])
        return _executable(self.machine, b"".join((content, behind)))


class CallProgram:
    """
    Builder of a program from system calls.

    The calls are made in the order in which they are added. A failed call is followed by the
    next one, unless it has a label for its error or for `ANY`. The last call must not return.
    """

    def __init__(self, machine: str, *, at: int | None = None) -> None:
        """
        Args:
            machine: Architecture, as `uname -m` prints it.
            at: Address of a `continuation` in the memory of another program.

        Raises:
            KeyError: The architecture is not supported.
        """
        self._machine = machine
        self._numbers = MACHINES[machine].numbers
        self._at = at
        # A continuation begins with the rule that leads to it; see `continuation`.
        self._start = RESULT + _FIRST.size if at is None else at + _RULE.size
        self._data = bytearray()
        self._blanks: dict[str, list[int]] = {}
        self._constants: dict[int, int] = {}
        self._calls: list[_Call] = []
        self._zero = self._constant(0)

    def data(self, content: bytes) -> int:
        """Add bytes to the program's memory; return their address, a multiple of 8."""
        address = self._start + len(self._data)
        self._data += content
        # Aligned, since the code loads 8 bytes at a time.
        self._data += bytes(-len(content) % 8)
        return address

    def text(self, text: str) -> int:
        """Add a NUL-terminated text to the program's memory; return its address."""
        return self.data(text.encode("utf-8", "surrogateescape") + b"\0")

    def blank(self, name: str) -> int:
        """Add a word that a `Template` fills in; return its address."""
        address = self.data(bytes(_WORD.size))
        self._blanks.setdefault(name, []).append(address - RESULT)
        return address

    def bind(self, label: Label) -> None:
        """Set a label to the next call."""
        label.at = len(self._calls)

    def call(
        self,
        name: str,
        *arguments: int | At,
        result: int = RESULT,
        failed: Label | Mapping[int, Label] | None = None,
    ) -> None:
        """
        Add a call.

        Args:
            name: Name of the system call.
            arguments: Up to five arguments; missing ones are 0.
            result: Address for the result, in 4 bytes, in addition to `RESULT`.
            failed: Label to continue with after an error, or labels by error number.
        """
        if isinstance(failed, Label):
            failed = {ANY: failed}
        addresses = [
            argument.address if isinstance(argument, At) else self._constant(argument)
            for argument in arguments
        ]
        addresses += [self._zero] * (_MOST_ARGUMENTS - len(addresses))
        self._calls.append(_Call(self._numbers[name], tuple(addresses), result, failed or {}))

    def go_to(self, label: Label) -> None:
        """Jump to a label, by a call that always fails."""
        self.call("close", _NO_DESCRIPTOR, failed=label)

    def go_if_zero(self, number: At, label: Label) -> None:
        """Jump to a label if a number is 0: waiting for process 0 fails with EINVAL."""
        # The call writes a siginfo_t that no code reads.
        scrap = self.data(bytes(_SIGINFO))
        self.call("waitid", _ONE_PROCESS, number, scrap, _LOOK, failed={errno.EINVAL: label})

    def leave_to(self, address: int) -> None:
        """Jump to a `continuation`, which the program must have read to that address before."""
        number = self._numbers["close"]
        arguments = (self._constant(_NO_DESCRIPTOR), *[self._zero] * (_MOST_ARGUMENTS - 1))
        self._calls.append(_Call(number, arguments, RESULT, {}, address))

    def continuation(self) -> bytes:
        """
        Return the added calls for a program that runs already and jumps to them (`leave_to`).

        They begin with a rule for `ANY` error that leads to the first call.
        """
        # All addresses in it depend on where it is put.
        assert self._at is not None
        return self._table()

    def _constant(self, value: int) -> int:
        """Return the address of a constant."""
        # Each number is stored once: most arguments are 0 or a small flag.
        address = self._constants.get(value)
        if address is None:
            address = self._constants[value] = self.data(_WORD.pack(value))
        return address

    def template(self) -> Template:
        """Return the program, whose blanks are filled in for each use."""
        return Template(self._machine, self._table(), self._blanks)

    def image(self, *, memory_end: int = 0) -> bytes:
        """
        Return the executable file.

        Args:
            memory_end: Address at which its memory ends; the part after the file is zeros.
        """
        return _executable(self._machine, self._table(), memory_end)

    def _table(self) -> bytes:
        """Return the content after the code: data, then records, then rules."""
        records_at = self._start + len(self._data)
        rules_at = records_at + _RECORD.size * len(self._calls)
        records, rules = bytearray(), bytearray()
        for index, call in enumerate(self._calls):
            follows = rules_at + len(rules) if call.leaves_to is None else call.leaves_to
            records += _RECORD.pack(call.number, *call.arguments, call.result, follows)
            # Unless a label says otherwise, a failed call is followed by the next one.
            otherwise = index + 1
            for error, label in call.failed.items():
                # Every label that is used must also be bound.
                assert label.at is not None
                # The rule for any error always matches, so it has to be the last one.
                if error == ANY:
                    otherwise = label.at
                else:
                    rules += _RULE.pack(error, records_at + _RECORD.size * label.at)
            rules += _RULE.pack(ANY, records_at + _RECORD.size * otherwise)
        if self._at is None:
            before = _FIRST.pack(0, 1, records_at, 0, 0)
        else:
            before = _RULE.pack(ANY, records_at)
        return b"".join((before, self._data, records, rules))


def _executable(machine: str, table: bytes, memory_end: int = 0) -> bytes:
    """Return the file of a program whose content after the code is `table`."""
    code = _WALKS[machine]
    segments = (
        (_LOADED, _R | _X, 0, _BASE, _CODE_AT + len(code), 0),
        (_LOADED, _R | _W, _TABLE_AT, RESULT, len(table), memory_end - RESULT),
        (_STACK, _R | _W, 0, 0, 0, 0),
    )
    head = _ELF_HEADER.pack(
        *(_IDENTITY, _EXECUTABLE, _ELF_MACHINES[machine], 1, _BASE + _CODE_AT),
        *(_ELF_HEADER.size, 0, 0, _ELF_HEADER.size, _ELF_SEGMENT.size, len(segments), 0, 0, 0),
    )
    for kind, access, offset, address, size, memory in segments:
        head += _ELF_SEGMENT.pack(
            *(kind, access, offset, address, address, size, max(size, memory), _ALIGNMENT)
        )
    return b"".join([head.ljust(_CODE_AT, b"\0"), code]).ljust(_TABLE_AT, b"\0") + table
