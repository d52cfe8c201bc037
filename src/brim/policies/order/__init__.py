"""Order parts: who is served first. One file each."""
