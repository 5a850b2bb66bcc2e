"""A run as a trace that viewers read: Chrome's format and Perfetto's."""
