"""What does an estimator for a classifier from elsewhere consist of? The parts of `Judge`."""
