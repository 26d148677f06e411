"""`make release`: one version of everything that a release consists of, in one folder (docs/releases.md)."""
