"""Stage three: every row of a study on the same rows of data, seeds and backbone."""
