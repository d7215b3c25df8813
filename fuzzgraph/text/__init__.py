"""How things read: findings, cases, numbers, and text that somebody else wrote."""
