"""How a person sees the results: tables, figures and pages."""
