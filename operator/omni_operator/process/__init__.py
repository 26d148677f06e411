"""The process around the decisions: settings, watches, the queue, health, metrics, logs, kopf."""
