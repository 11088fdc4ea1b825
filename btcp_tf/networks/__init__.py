"""From an input to probabilities and an uncertainty: Keras models and layers."""
