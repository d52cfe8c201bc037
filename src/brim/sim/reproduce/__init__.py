"""Repeats experiments of published papers under documented conditions."""
