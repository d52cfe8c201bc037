"""Fill parts decide which jobs use the remaining GPUs."""
