"""What crosses a file or a package boundary: the run directory, its way to a server, the store's
tables.

Importing this loads none of it: a command whose libraries are missing lives to say so.
"""
