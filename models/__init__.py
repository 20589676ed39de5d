"""Mechanical systems, one a file, in the same shape as a user's own."""
