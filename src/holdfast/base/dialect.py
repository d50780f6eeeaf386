"""
The dialect that peers expect: limits, texts, names and versions, and the wording of faults.

All of it is in one room, `codex/`, and this module is the way to it: the rest of the code asks
`limits.SESSION_KEPT` and does not know whom it imitates. A name is loaded when it is first used.
"""

from holdfast.base.late_import import late_module, late_names

# Not `typing.TYPE_CHECKING`: loading `typing` would make every guardian larger.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.codex import limits as limits
    from holdfast.codex import names as names
    from holdfast.codex import texts as texts
    from holdfast.codex import versions as versions
    from holdfast.codex.rust_text import debug_text as debug_text
    from holdfast.codex.rust_text import float_text as float_text
    from holdfast.codex.serde_text import blame as blame
    from holdfast.codex.serde_text import oversized as oversized
    from holdfast.codex.serde_text import wrong_type as wrong_type
    from holdfast.codex.toml_text import Table as Table
    from holdfast.codex.toml_text import spell_value as spell_value
    from holdfast.codex.versions import Compat as Compat
else:
    # Sentences are for failures: a command that has none does not load them.
    texts = late_module("holdfast.codex.texts")

__all__ = [
    "Compat",
    "Table",
    "blame",
    "debug_text",
    "float_text",
    "limits",
    "names",
    "oversized",
    "spell_value",
    "texts",
    "versions",
    "wrong_type",
]

__getattr__ = late_names(
    globals(),
    {
        "Compat": "holdfast.codex.versions:Compat",
        "Table": "holdfast.codex.toml_text:Table",
        "blame": "holdfast.codex.serde_text:blame",
        "debug_text": "holdfast.codex.rust_text:debug_text",
        "float_text": "holdfast.codex.rust_text:float_text",
        "limits": "holdfast.codex.limits",
        "names": "holdfast.codex.names",
        "oversized": "holdfast.codex.serde_text:oversized",
        "spell_value": "holdfast.codex.toml_text:spell_value",
        "versions": "holdfast.codex.versions",
        "wrong_type": "holdfast.codex.serde_text:wrong_type",
    },
)
