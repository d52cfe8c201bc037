"""Order parts decide which job is served first."""
