"""Which samples a step takes, and how its batches are loaded."""
