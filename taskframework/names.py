"""How people name task types, schedules and the buckets of rate limits."""

from __future__ import annotations

import re

#: Such a name needs no quotes in a command, in the path of a URL and in the name of a queue.
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
