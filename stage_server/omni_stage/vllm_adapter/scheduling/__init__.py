"""What our schedulers share: payloads for the worker, the order of requests, turns for media, early ends."""
