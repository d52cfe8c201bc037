"""The headline experiments of the papers, under conditions that are written down."""
