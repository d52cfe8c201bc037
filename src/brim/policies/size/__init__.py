"""Size parts: how many GPUs each job should have."""
