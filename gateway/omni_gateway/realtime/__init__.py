"""OpenAI's Realtime API: a call of several turns over one WebSocket.

state      what happens: the session, its items, its responses
call       the socket, the tasks, and the calls of the pipeline
detector   who speaks: Silero's probabilities
route      the handshake
"""
