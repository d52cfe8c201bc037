"""The live driver carries out the engine's decisions on real processes under the wall clock."""
