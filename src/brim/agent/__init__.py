"""The node agent: a process per node and user that starts, watches and ends attempts, and outlives the controller."""
