"""Predictions: fitted from what was observed, with their source; never the truth of the simulator."""
