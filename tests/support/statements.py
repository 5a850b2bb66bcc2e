"""SQL for tests."""

# Runs until it is stopped.
RUNAWAY = (
    "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range % 7 = b.range % 11"
)
