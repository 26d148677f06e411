"""Generates the CustomResourceDefinition, its schema and the reference page from the types."""
