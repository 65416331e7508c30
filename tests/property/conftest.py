"""How hypothesis runs here: without a limit on time, which a busy machine would break, and without leaving files."""

from hypothesis import settings

settings.register_profile("taskframework", deadline=None, database=None)
settings.load_profile("taskframework")
