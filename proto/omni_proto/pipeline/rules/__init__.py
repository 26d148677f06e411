"""The rules of the API that types cannot express, in CEL. The API server and `omnipipe` evaluate the same rules."""
