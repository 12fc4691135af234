"""How fast the house is, against peers that do the same work: what `mempo bench` measures.

Each part races arms that compute the same numbers from the same tokens, in turns and in one
process, and says the ratio of their times. Nothing else of the library uses this package.
"""
