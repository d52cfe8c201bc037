"""Decisions: order, size, place, feed and fill parts, and the policies that combine one part of each."""
