"""How is a model used? Exported SavedModels, batch scoring, a client for model servers."""
