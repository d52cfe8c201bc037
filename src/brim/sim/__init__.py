"""Driver 1, the twin: virtual time, ground truth, overheads and faults around the same rounds as the live cluster."""
