"""The rules of the API that types cannot say, in CEL: the API server evaluates them, and `omnipipe` the very same."""
