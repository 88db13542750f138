"""What trains: measurements -> the packs that the models use. Needs scikit-learn; prediction does not."""
