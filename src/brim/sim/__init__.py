"""The twin: virtual time, ground truth, overheads and faults around the same rounds as on the live cluster."""
