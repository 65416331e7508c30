"""The HTTP interface: a door to submitting, looking and operating. It decides nothing itself."""
