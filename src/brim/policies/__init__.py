"""Decisions: order, size, place, feed, fill, and the policies that join one part of each."""
