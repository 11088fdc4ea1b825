"""What images there are, how they are split and how they are fed."""
