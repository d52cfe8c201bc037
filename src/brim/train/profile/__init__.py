"""Measuring one training script on this machine: its steps, its loader, its exchange of gradients.

``rank`` and ``exchange`` run in ranks and import torch; ``gang`` runs beside them and does not.
"""
