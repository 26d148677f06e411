"""Images and audio of requests: from data: URIs, addresses and base64 to what a stage takes."""
