"""Measures first audio with engines that keep a GPU's pace. Stage servers, edges and streams are the product's.

ideal        the best times that a table allows: the same clocks in virtual time; servers and edges cost nothing
measure      sends the same requests to real stage servers
"""
