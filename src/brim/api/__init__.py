"""HTTP over the controller, and its client."""
