"""The one thing pyproject.toml cannot say: the trace scanner in C, which an install can do without.

`analyzer/trace/_scan.c` needs no Python.h and is loaded by ctypes, so one build serves every
version of Python. Where no compiler is found the install goes on, and `analyzer/trace/
pure_scanner.py` reads the same rows.
"""

import os

from setuptools import Extension, setup

scanner = Extension(
    "analyzer.trace._scan",
    sources=["analyzer/trace/_scan.c"],
    extra_compile_args=[] if os.name == "nt" else ["-O3", "-g0", "-fvisibility=hidden"],
    optional=True,
    py_limited_api=True,
)

setup(ext_modules=[scanner], options={"bdist_wheel": {"py_limited_api": "cp310"}})
