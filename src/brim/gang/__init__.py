"""The processes of one job on one node: protocol, zygote, supervisor. Standard library and psutil only."""
