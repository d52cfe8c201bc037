"""What would happen: why a job waits and what would let it run, where a job would go, when it would start."""
