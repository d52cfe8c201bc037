"""Starts and supervises the processes of one job on one node. Its modules import only the standard library."""
