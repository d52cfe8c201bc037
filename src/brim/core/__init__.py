"""Facts: clusters, jobs, events, actions, the one mutable state, its frozen snapshots, and the checks on them."""
