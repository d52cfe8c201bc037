"""Tests of what would happen."""
