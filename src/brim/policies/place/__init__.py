"""Place parts choose the GPUs. ``free_resources`` counts what is free; ``walk`` places jobs in the given order."""
