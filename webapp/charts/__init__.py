"""Charts: records in, an Altair chart out. Pure functions: no store, no Streamlit.

One subject a module. Colours and their order are given, never left to the library. Axes carry
units, tooltips exact values.
"""

from webapp.charts import accounts, balance, columns, distribution, ranks, sweep, timeline

__all__ = ["accounts", "balance", "columns", "distribution", "ranks", "sweep", "timeline"]
