"""Measures first audio with engines that keep a GPU's pace. Stage servers, edges and clients are real.

ideal        the best times that a table of GPU timings allows: the same clocks in virtual time, with servers and edges
             that cost nothing
measure      sends the same requests to real stage servers
goals        first audio of an H200 in virtual time, with recorded and with improved steps, beside goals and the floor
rate         sends requests at random times, and reports what listeners hear
"""
