"""Models and access of the API, cell and journal databases."""
