"""AutoML: what is searched (space), the study folder and its suggestions (study), trials as jobs (runner), the page."""
