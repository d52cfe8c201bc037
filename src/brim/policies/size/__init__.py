"""Size parts decide how many GPUs each job should have."""
