"""Elastic, preemptible PyTorch training whose results do not depend on either (docs/decisions/0010)."""
