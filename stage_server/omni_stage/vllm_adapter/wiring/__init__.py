"""How front end, scheduler and worker find and reach one another: class names, keys, packed outputs."""
