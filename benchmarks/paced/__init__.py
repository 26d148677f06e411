"""First audio with engines at a GPU's pace: the stage servers, edges and streams are the product's.

ideal        what the table alone allows: the same clocks in virtual time, nothing around them costing anything
measure      the same requests to real stage servers
"""
