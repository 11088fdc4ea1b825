"""How the paper's three phases are trained."""
