"""The team server: one process that takes uploads, converts them and answers, over one folder.

`serve.py` starts it; `layout.py` says where things lie; `state.py`, `tokens.py`, `uploads.py` and
`jobs.py` keep what must survive a crash; `pool.py` and `worker.py` convert; `api*.py` speak HTTP;
`sql.py` answers a person's SQL in a child process; `pages.py` is what the web app sees of it all.
Importing this package loads no web library.
"""
