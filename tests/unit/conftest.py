"""Settings for tests with generated examples."""

from hypothesis import settings

# The same examples on every run, and no clock: a busy machine is no reason to fail.
settings.register_profile("holdfast", derandomize=True, deadline=None, database=None)
settings.load_profile("holdfast")
