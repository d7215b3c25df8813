"""What sglang hands over by another rule than `oracles.handover` has, with the lines that say so.

One table for each kind of runner; `fuzzgraph check-target` lists and counts what they excuse.
"""
