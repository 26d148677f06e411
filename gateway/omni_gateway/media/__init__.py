"""Media of requests: converts data: URIs, https addresses and base64 to the formats that a stage accepts."""
