"""What all our schedulers share: payloads on their way to the worker, and how requests end early."""
