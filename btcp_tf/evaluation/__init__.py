"""How good an uncertainty is: saved predictions, rows of metrics, means over seeds."""
