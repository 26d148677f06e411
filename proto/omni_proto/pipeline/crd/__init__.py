"""What is generated from the types: the CustomResourceDefinition, its schema and the reference page."""
