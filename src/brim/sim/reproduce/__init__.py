"""The headline experiments of the papers, under documented conditions."""
