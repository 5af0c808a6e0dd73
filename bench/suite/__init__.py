"""The suite of small tests that the load `kit` runs."""
