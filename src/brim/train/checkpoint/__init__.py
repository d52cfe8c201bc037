"""Checkpoints that survive a kill, a power cut or a full disk: format, writing, reading, how often."""
