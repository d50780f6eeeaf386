"""
The prompt of `holdfast shell`: a model's tools, used by a person.

It uses `unified_exec` only, so a person sees the same sessions, waits and texts as a model.
"""
