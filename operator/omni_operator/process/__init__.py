"""What makes the decisions a process: settings, watches, the queue, health, metrics, logs, kopf."""
