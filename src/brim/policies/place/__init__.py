"""Place parts choose the GPUs. ``room`` counts free resources; ``walk`` places jobs in the given order."""
