"""AutoML: what is varied (space), how it begins (prepare), its folder (study), trials as jobs (runner), the results."""
