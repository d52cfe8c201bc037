"""How jobs really run in a replay: what is true of their speeds, steps and gradients."""
