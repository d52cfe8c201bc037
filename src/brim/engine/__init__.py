"""One round: snapshot, five decisions, plan, checked actions. No clock, no randomness, no I/O; both drivers use it."""
