"""Where runs are kept: a DuckDB file, or a lake."""
