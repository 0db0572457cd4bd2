"""What is kept on disk: run records, trained artifacts, ensembles."""
