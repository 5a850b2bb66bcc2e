"""From events to figures: links, spans, decomposition, ledger, totals. Pure; integers only."""
