"""Pages over a store, in the browser; of our code they see `analyzer.queries` and `schemas`."""
