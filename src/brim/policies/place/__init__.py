"""Place parts: which GPUs. ``room`` is the arithmetic of free resources, ``walk`` the walk down the order."""
