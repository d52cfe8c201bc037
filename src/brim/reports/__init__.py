"""Data out: metrics, lower bounds, comparison tables, result files and one self-contained HTML page."""
