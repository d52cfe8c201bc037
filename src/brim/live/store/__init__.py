"""Where a controller keeps its state: SQLite in a folder of its own, durable before anybody is told."""
