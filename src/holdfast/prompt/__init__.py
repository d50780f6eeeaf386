"""
The prompt of `holdfast shell`: the tools of a model, for a person.

It stands on `unified_exec` alone, so it shows what a model would see: the same sessions, the
same waits, the same texts.
"""
