"""`make mutations`: breaks the product on purpose, one behaviour at a time, and checks that its unit tests notice."""
