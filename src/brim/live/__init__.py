"""The live driver: the engine's decisions carried out on real processes under the wall clock."""
