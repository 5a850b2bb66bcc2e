"""What the runtime knows of a model: its sizes, where it comes from, its weights."""
