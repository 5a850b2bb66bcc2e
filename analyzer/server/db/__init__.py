"""The database of the server: tokens, sessions, uploads, jobs."""
