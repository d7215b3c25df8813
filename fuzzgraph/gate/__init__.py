"""What a change of an engine breaks and mends: the same cases on its tree and on its base."""
