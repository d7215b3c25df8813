"""A run as data: what it is asked, what happens in it, and what it has come to."""
