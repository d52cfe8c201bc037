"""Fill parts: what uses the GPUs that are left."""
