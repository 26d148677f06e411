"""Steps in virtual time: what each step contains, when it ends, and a ticker that waits until then."""
