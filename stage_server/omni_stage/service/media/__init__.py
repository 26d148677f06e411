"""The images and audio of a request: what they will cost, and the processes that decode them."""
