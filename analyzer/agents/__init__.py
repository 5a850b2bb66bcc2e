"""What agents may ask of a store: bounded answers with their evidence (Model Context Protocol)."""
