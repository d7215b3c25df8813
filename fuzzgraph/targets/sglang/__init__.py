"""Real sglang, from a released wheel, behind the ports.

Nothing here imports sglang when it is imported; `loading` does so when a target opens.
"""
