"""The pages for a browser: the demo at / and the API's document at /docs."""
