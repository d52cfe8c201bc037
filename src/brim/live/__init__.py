"""The controller of a live cluster: the engine's decisions under the wall clock, and what is stored of them."""
