"""What readers of formats without JSON share: tables, events in columns, their rows as a trace."""
