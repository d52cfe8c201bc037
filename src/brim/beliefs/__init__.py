"""Predictions, fitted from observations, with their sources; they never contain the truth of the simulator."""
