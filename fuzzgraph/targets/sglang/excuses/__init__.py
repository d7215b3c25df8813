"""What sglang hands over by another rule than `oracles.handover` has, with the lines that say so.

One table for each kind of runner: what is excused is listed and counted by `fuzzgraph check-target`.
"""
