"""`make mutations`: break the product on purpose, one behaviour at a time, and see whether its unit tests notice."""
