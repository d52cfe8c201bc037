"""Reports on replays: metrics, lower bounds, comparison tables, result files and one self-contained HTML page."""
