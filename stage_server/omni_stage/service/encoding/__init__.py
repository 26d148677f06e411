"""Requests and responses as bytes: names and serializers, the count of fields, audio chunks."""
