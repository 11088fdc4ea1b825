"""How one gets an uncertainty: one function for each method."""
