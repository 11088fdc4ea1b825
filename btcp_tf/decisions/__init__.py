"""When an answer is accepted, and whether that still holds."""
