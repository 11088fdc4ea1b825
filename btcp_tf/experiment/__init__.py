"""One run and one study, from settings to a published model."""
