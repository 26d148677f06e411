"""The engine as its callers see it: one interface, over a process of its own or over this process."""
