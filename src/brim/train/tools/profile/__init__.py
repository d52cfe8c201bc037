"""Measures one training script on this machine: its steps, its loader and its exchange of gradients.

``rank`` and ``exchange`` run in the ranks and import torch; ``gang`` runs in the process that starts them and does not.
"""
