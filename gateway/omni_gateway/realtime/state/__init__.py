"""What happens in a session: pure, without a clock, a task or a socket."""
