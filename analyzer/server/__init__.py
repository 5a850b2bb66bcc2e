"""The team server: one process that takes uploads, converts them and answers, over one folder.

`serve.py` starts it and `service.py` holds its parts together; `layout.py` says where things lie.
`db/`, `auth/`, `uploads/` and `jobs/` keep what must survive a crash; `jobs/` and `sql/` work in
child processes, which `supervise.py` watches; `http/` answers requests; `pages.py` is what the web
app sees of it all. Importing this package loads no web library.
"""
