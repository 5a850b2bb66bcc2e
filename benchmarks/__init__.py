"""One script a question; `python -m benchmarks.NAME` runs it from the root of a checkout."""
