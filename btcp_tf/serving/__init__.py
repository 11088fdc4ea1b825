"""How a model leaves the house: SavedModel, batch scoring, client."""
