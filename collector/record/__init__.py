"""The passes of a recording, and the run directory that they make."""
