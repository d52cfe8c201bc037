"""From the gradients of micro-batches to one update: the tree of sums, buckets, the step's summary, the optimizer."""
