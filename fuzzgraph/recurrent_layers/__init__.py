"""What layers with a recurrent state compute, one module a layer, in float64 and without an engine.

Each chooses the numbers of its model such that states show a token that is missing, foreign or
counted twice, and such that little or nothing of them is rounded.
"""
